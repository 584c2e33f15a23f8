"""The device, switched on over the loopback link before any test of this folder."""

from __future__ import annotations

from tests.support.device import switch_on

switch_on()
