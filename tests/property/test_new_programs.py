"""Random torch programs that were never run before give on the device what they give on the CPU (see test_programs).

A failure prints its seed, ``python -m tests.programs --seed N --programs 1`` repeats it.
"""

from __future__ import annotations

import pytest

from tests.support.programs import run


@pytest.mark.slow
def test_new_programs_through_bus_and_node_agree_with_the_cpu() -> None:
    run(80, None, "--backend", "reference")
