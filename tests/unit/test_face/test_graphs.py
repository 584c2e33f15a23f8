"""CUDA graphs on the device: what a capture keeps, what a replay does, and what cannot be captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from wooly.device import programs
from wooly.device.recorder import RECORDER


def captured(work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


EARLIER, _ = captured(lambda: torch.ones(2, device="cuda") * 2)


def test_a_capture_that_was_not_begun_does_not_end() -> None:
    x = torch.ones(2, device="cuda") * 5
    with pytest.raises(RuntimeError, match="without capture_begin"):
        torch.cuda.CUDAGraph().capture_end()
    assert x.tolist() == [5, 5]


def test_a_capture_does_nothing_and_each_replay_everything() -> None:
    x = torch.ones(4, device="cuda")

    def work() -> Tensor:
        assert torch.cuda.is_current_stream_capturing()
        counted = torch.zeros(4, device="cuda")
        counted += x
        x.add_(1)
        return counted * 10

    graph, result = captured(work)
    assert not torch.cuda.is_current_stream_capturing() and x.tolist() == [1] * 4
    for i in range(1, 4):
        graph.replay()
        assert result.tolist() == [10 * i] * 4 and x.tolist() == [i + 1] * 4


def test_replays_draw_the_numbers_that_calls_would() -> None:
    torch.manual_seed(7)
    want = [torch.rand(3, device="cuda").tolist() for _ in range(4)]
    torch.manual_seed(7)
    graph, drawn = captured(lambda: torch.rand(3, device="cuda"))
    got = []
    for _ in range(3):
        graph.replay()
        got.append(drawn.tolist())
    assert [*got, torch.rand(3, device="cuda").tolist()] == want


def test_numbers_of_another_generator_are_the_same_in_each_replay() -> None:
    torch.manual_seed(3)
    torch.rand(100, device="cuda")
    other = torch.Generator("cuda").manual_seed(3)
    want = torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(3)).tolist()
    graph, drawn = captured(lambda: torch.rand(3, device="cuda", generator=other))
    for _ in range(2):
        graph.replay()
        assert drawn.tolist() == want


def test_buffers_live_as_long_as_their_graph() -> None:
    y = torch.zeros(4, device="cuda")
    pinned = dict(RECORDER._pins)

    def of_what_is_forgotten() -> torch.cuda.CUDAGraph:
        x = torch.ones(4, device="cuda")
        return captured(lambda: y.copy_(x * 2) + 1)[0]

    graph = of_what_is_forgotten()
    torch.cuda.synchronize()  # would free the input and the result
    graph.replay()
    assert y.tolist() == [2] * 4
    assert len(RECORDER._pins) == len(pinned) + 3 and len(RECORDER._kept) == 2
    del graph
    assert RECORDER._pins == pinned and not RECORDER._kept
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: torch.cuda.synchronize(),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: x.nonzero(),
        lambda x: captured(lambda: x + 1),
        lambda x: EARLIER.replay(),
    ],
    ids=["item", "cpu", "synchronize", "upload", "size", "capture", "replay"],
)
def test_what_waits_cannot_be_captured_and_everything_after_it_works(work: Callable[[Tensor], object]) -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.AcceleratorError, match="operation failed due to a previous error during capture") as caught:
        with torch.cuda.graph(graph):
            made = x * 3
            work(made)
    torch.cuda.set_stream(torch.cuda.default_stream())  # torch leaves the capture's stream current
    assert "operation not permitted when stream is capturing" in str(caught.value.__context__)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert x.tolist() == [1] * 4 and not torch.cuda.is_current_stream_capturing()


def test_a_capture_that_is_larger_than_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = programs._build

    def built(wired: programs.Wired) -> programs._Structure:
        if len(wired.stencils) > 3:
            raise programs.TooLarge
        return whole(wired)

    monkeypatch.setattr(programs, "_build", built)
    x = torch.ones(3, device="cuda")

    def work() -> Tensor:
        y = x + 1
        z = y * 2
        for _ in range(6):
            z = z + y.square()
        return z - y

    graph, result = captured(work)
    for i in range(3):
        x.fill_(i)
        graph.replay()
        assert result.tolist() == [(i + 1) * 2 + 6 * (i + 1) ** 2 - (i + 1)] * 3


def test_a_graph_without_work_can_be_replayed() -> None:
    graph, _ = captured(lambda: torch.empty(2, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()


def test_tensors_without_elements_are_made_in_a_capture() -> None:
    x = torch.ones(2, device="cuda")
    graph, result = captured(lambda: torch.cat([torch.tensor([], device="cuda"), x * 2]))
    graph.replay()
    assert result.tolist() == [2, 2]


def test_graphs_share_what_is_in_a_pool() -> None:
    first, made = captured(lambda: torch.ones(2, device="cuda") * 3)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=first.pool()):
        result = made + 1
    first.replay()
    second.replay()
    assert result.tolist() == [4, 4]
