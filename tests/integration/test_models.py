"""Unmodified scripts on our device give what they give on the CPU, and the same bits each time.

The scripts stand in tests/integration/scripts. Each runs once on the CPU and twice on a node of an embedded stack: the first time as its
author would run it, the second time in a copy of another Python, with other addresses and another hash seed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bus_schemas.events import SessionClosedFact
from services.kit.bus import connect
from tests.support.fork_server import run_script
from tests.support.results import compare
from tests.support.stack import EmbeddedStack, plain_environment

SCRIPTS = Path(__file__).parent / "scripts"
COMPARED = "mlp cnn llama amp masks raw_kernels".split()
MORE = "gpt2 rnn lora t5 vision attention indexing loader saving".split()
COMPUTED_IN = {"amp": torch.bfloat16}
DEVICE_ONLY = ["cuda_calls", "cuda_extension", "graphs", "mistakes", "odd_values", "asserts"]


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


def result_of(done: subprocess.CompletedProcess[str], out: Path) -> Any:
    """What a script has saved."""
    assert done.returncode == 0, f"{done.args} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return torch.load(out, weights_only=False)


def run(script: str, out: Path, environment: dict[str, str]) -> Any:
    """Run one script as its author would; what it saved."""
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(out)]
    return result_of(subprocess.run(command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=240), out)


def run_copy(script: str, out: Path, environment: dict[str, str]) -> Any:
    """The same in a copy of a Python that has imported torch."""
    return result_of(run_script(SCRIPTS / f"{script}.py", str(out), env=environment, cwd=out.parent), out)


def closed_sessions(stack: EmbeddedStack) -> list[SessionClosedFact]:
    """Every session the log says has ended, in its order."""

    async def read() -> list[SessionClosedFact]:
        bus = await connect(stack.addresses["nats"], name="test")
        replay = bus.replay()
        end = await replay.history_end()
        found: list[SessionClosedFact] = []
        async for position, events in replay:
            found += [e for e in events if isinstance(e, SessionClosedFact)]
            if position >= end:
                break
        await replay.close()
        await bus.close()
        return found

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.parametrize("script", [*COMPARED, *(pytest.param(script, marks=pytest.mark.variant) for script in MORE)])
def test_as_on_the_cpu_and_the_same_twice(script: str, stack: EmbeddedStack, tmp_path: Path) -> None:
    want = run_copy(script, tmp_path / "cpu.pt", plain_environment())
    first = run(script, tmp_path / "first.pt", stack.client_environment())
    compare(first, want, exact=False, computed_in=COMPUTED_IN.get(script))
    second = run_copy(script, tmp_path / "second.pt", stack.client_environment())
    compare(second, first, exact=True)
    *_, before, last = closed_sessions(stack)
    assert before.launches == last.launches > 0
    assert before.launch_digest == last.launch_digest, "two runs launched other programs, or in another order"
    assert before.instructions == last.instructions


@pytest.mark.slow
@pytest.mark.parametrize("script", DEVICE_ONLY)
def test_on_the_device(script: str, stack: EmbeddedStack, tmp_path: Path) -> None:
    first = run(script, tmp_path / "first.pt", stack.client_environment(REQUIRED_VRAM="2048"))
    second = run_copy(script, tmp_path / "second.pt", stack.client_environment(REQUIRED_VRAM="2048"))
    compare(second, first, exact=True)


def test_the_bill_of_all_of_it_is_right(stack: EmbeddedStack) -> None:
    """After every script above: accounts close on the node, and the bill is what the log gives."""
    check = stack.get("billing", "/api/v1/billing/verify")
    assert check["ok"], check
    total = stack.get("billing", "/api/v1/billing/credits?by=tenant")["total"]
    assert total["core_credits_micro"] > 0 and total["vram_credits_micro"] > 0
    sessions = closed_sessions(stack)
    assert total["core_ns"] == sum(s.core_ns + s.compile_ns for s in sessions)
    assert total["instructions"] == sum(s.instructions for s in sessions)
