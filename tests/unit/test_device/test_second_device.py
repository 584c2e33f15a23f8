"""The second device of a process computes what the first one does: tests of this folder, which name no device, with the second one
current."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.support.stack import ROOT, plain_environment

_PROGRAM: Final = """
import sys
import pytest
import torch
from tests.support.device import link
from wooly.activation import activate
from wooly.config import Config

torch.set_num_threads(1)
activate(Config(gpu_count=2), link)
torch.cuda.set_device(1)
code = pytest.main(["-q", "-p", "no:cacheprovider", *(f"tests/unit/test_device/test_{name}.py" for name in sys.argv[1:])])
used = [torch.cuda.max_memory_allocated(index) > 0 for index in range(2)]
assert used == [False, True], used
sys.exit(code)
"""
_FILES: Final = "composed factories factorise fallback half jagged odd_numbers random refused_types shapes special values views".split()


@pytest.mark.parametrize("names", [["types"], pytest.param(_FILES, marks=pytest.mark.variant)], ids=["some", "all"])
def test_the_second_device_computes_what_the_first_does(names: list[str]) -> None:
    command = [sys.executable, "-c", _PROGRAM, *names]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
