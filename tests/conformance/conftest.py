"""The device, switched on before torch's operator database imports ``torch._dynamo``, which keeps functions that the device replaces: tests
of other folders share the process.
"""

from __future__ import annotations

from tests.support.device import switch_on

switch_on()
