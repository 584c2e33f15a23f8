"""What surrounds a call: threads, modes, default types, what is sent when."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tests.support.device import link
from wis.limits import LIMITS
from wooly.device import recorder
from wooly.device.lowering import LOWERINGS
from wooly.device.memory import MEMORY
from wooly.device.recorder import RECORDER
from wooly.link import Flush, LinkWrapper, Ticket


def test_threads_record_side_by_side() -> None:
    results: dict[int, float] = {}

    def work(seed: int) -> None:
        x = torch.full((4,), float(seed), device="cuda")
        for i in range(60):
            x = (x + i) * 0.5
            if i % 20 == 19:
                x.sum().item()
        results[seed] = x.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for seed, result in results.items():
        x = float(seed)
        for i in range(60):
            x = (x + i) * 0.5
        assert result == pytest.approx(4 * x)
    assert len(results) == 4


class Interrupted(LinkWrapper):
    """Ctrl-C while the next batch waits to be sent."""

    def submit(self, flush: Flush) -> Ticket:
        RECORDER._link = self.inner
        raise KeyboardInterrupt


def test_a_batch_that_ctrl_c_kept_from_the_link_is_sent_later() -> None:
    x = torch.zeros(8, device="cuda")
    dying = torch.ones(8, device="cuda")
    x += dying
    torch.cuda.synchronize()
    x += dying
    del dying
    RECORDER._link = Interrupted(link())
    with pytest.raises(KeyboardInterrupt):
        x.tolist()
    held = len(link().handles)
    x += 1
    assert x.tolist() == [3.0] * 8
    torch.cuda.synchronize()
    assert len(link().handles) < held  # what died in the batch is given back


def test_a_program_of_too_many_bytes_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wooly.device.programs.LIMITS", replace(LIMITS, program_bytes_max=200))
    x, batches = torch.arange(4.0, device="cuda"), recorder.COUNTERS.batches
    for n in range(1, 9):
        x = x * n + torch.full((4,), float(n), device="cuda").sin()
    assert x.tolist()
    assert recorder.COUNTERS.batches > batches + 2


def test_records_that_ctrl_c_kept_from_a_batch_are_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(8, device="cuda")
    x += torch.tensor([1.0], device="cuda")

    def interrupted(wired: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(RECORDER.programs, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            x.tolist()
    x += 1
    assert x.tolist() == [2.0] * 8


def test_the_default_type_is_part_of_what_plans_stand_on() -> None:
    def types() -> list[torch.dtype]:
        return [torch.ones(2, device="cuda").dtype, (torch.arange(3, device="cuda") / 2).dtype]

    assert types() == [torch.float32] * 2
    torch.set_default_dtype(torch.float64)
    try:
        assert types() == [torch.float64] * 2
    finally:
        torch.set_default_dtype(torch.float32)
    assert types() == [torch.float32] * 2


def test_numbers_of_different_kinds_are_different_calls() -> None:
    """1, 1.0 and True are equal in Python, and give different result types."""
    x = torch.arange(3, device="cuda")
    assert [(x + n).dtype for n in (1, 1.0, True, 1j)] == [torch.int64, torch.float32, torch.int64, torch.complex64]
    assert [(x * n).tolist()[2] for n in (2, 2.5, False)] == [4, 5.0, 0]


def test_a_number_that_changes_is_not_a_new_template() -> None:
    x = torch.ones(3, device="cuda")
    (x * 0.5 + 1.5).pow(2.0)
    known = RECORDER.counters.templates
    values = [((x * n + n).cpu()[0].item(), n) for n in (0.1, 0.2, 3.0)]
    assert RECORDER.counters.templates == known
    for value, n in values:
        assert value == pytest.approx(2 * n)


def test_outputs_have_torchs_strides() -> None:
    for make in (
        lambda x: x.t() + 1,
        lambda x: torch.empty_like(x.t()),
        lambda x: x.t().relu().clone(),
        lambda x: x.t().contiguous(),
        lambda x: x.expand(3, 4, 5).exp(),
        lambda x: F.relu(x.view(1, 2, 2, 5).to(memory_format=torch.channels_last)),
    ):
        ours, cpu = make(torch.ones(4, 5, device="cuda")), make(torch.ones(4, 5))
        assert ours.stride() == cpu.stride()


def test_modes() -> None:
    x = torch.ones(3, device="cuda")
    with torch.inference_mode():
        y = (x + 1).view(3)[1:]
        assert y.is_inference() and y.tolist() == [2, 2]
    with torch.device("cuda"):
        assert torch.zeros(2).device.type == "cuda" and (torch.zeros(2) + x[:2]).tolist() == [1, 1]
        assert x.cpu().device.type == "cpu"


def test_nothing_is_sent_until_something_is_looked_at(flushes: list[Flush]) -> None:
    RECORDER.flush()
    flushes.clear()
    x = torch.ones(3, device="cuda")
    y = (x * 2).sum()
    assert not flushes
    assert y.item() == 6.0
    assert len(flushes) == 1 and flushes[0].n_ops == 3


def test_a_long_script_is_sent_in_pieces(flushes: list[Flush], monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that do not fit one program go in two: what the first half makes for the second outlives it."""
    from wooly.device import programs

    RECORDER.synchronize()
    flushes.clear()
    small = type(programs.LIMITS)(instructions_max=16)
    monkeypatch.setattr(programs, "LIMITS", small)
    x = torch.ones(3, device="cuda")
    for _ in range(40):
        x = x + 1
    assert x.tolist() == [41, 41, 41]
    assert len(flushes) > 2
    RECORDER.synchronize()
    gc.collect()


def test_memory_is_steady_over_steps() -> None:
    net = torch.nn.Linear(4, 4, device="cuda")
    step = torch.optim.AdamW(net.parameters())
    seen = []
    for _ in range(6):
        step.zero_grad()
        net(torch.ones(2, 4, device="cuda")).square().sum().backward()
        step.step()
        torch.cuda.synchronize()
        seen.append((len(link().handles), MEMORY.allocated))
    assert len(set(seen[2:])) == 1


def test_every_lowering_belongs_to_an_operator_that_reaches_it() -> None:
    """A lowering under a misspelt name would silently never be used."""
    from wooly.device.install import kernel_names
    from wooly.device.schema import describe, functional_of, overload

    names = set(kernel_names()) | {"aten::copy_", "aten::_to_copy"}
    reached = set(names)
    for name in names:
        info = describe(name, overload(name))
        if info.mutates:
            reached.add(functional_of(info) or name)
    unreached = [name for name in LOWERINGS if name not in reached]
    assert not unreached


def test_counters_are_public() -> None:
    counted = recorder.stats()
    assert set(counted) >= {"ops", "batches", "waits", "wire_bytes", "fallbacks"} and counted["ops"] > 0


def test_a_backward_pass_runs_in_the_thread_that_called_it() -> None:
    """A worker thread of torch's releases its last tensors after ``backward`` has returned, so that batches differ from run to run."""
    seen: list[int] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            seen.append(threading.get_ident())
            inner = torch.ones(2, device="cuda", requires_grad=True)
            inner.register_hook(lambda g: seen.append(threading.get_ident()))
            with torch.enable_grad():
                inner.square().sum().backward()
            return grad * 2

    x = torch.ones(3, device="cuda", requires_grad=True)
    Double.apply(x).sum().backward()
    assert seen == [threading.get_ident()] * 2
    assert torch.autograd.grad(x.square().sum(), x)[0].tolist() == [2.0] * 3
    assert torch._C._is_multithreading_enabled(), "the setting of this thread is as it was"


def test_a_gradient_that_dies_at_once_is_never_stored(flushes: list[Flush]) -> None:
    """300 times the same step: what is alive when a batch is sent does not depend on threads."""
    x = torch.ones(64, device="cuda", requires_grad=True)
    programs = set()
    for _ in range(300):
        loss = (x * 3).square().sum()
        torch.autograd.grad(loss, x)[0].cpu()
        flushes.clear()
        del loss
        x.detach().sum().item()
        programs.add((flushes[0].program, len(flushes[0].frees)))
    assert len(programs) == 1
