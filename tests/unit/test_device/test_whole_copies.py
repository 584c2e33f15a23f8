"""Copies over all of a large buffer: with weight dedup its tensors get the uploaded buffer itself, without an observable difference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.support.device import link
from wooly.device import transfer
from wooly.device.backend import handle_of
from wooly.device.recorder import RECORDER

N = 40_000
"""Elements: above what travels inside a batch, for two bytes each."""


@pytest.fixture(autouse=True)
def replacing() -> Iterator[None]:
    transfer.replace_whole(True)
    yield
    transfer.replace_whole(False)


def live() -> set[int]:
    """Handles the node holds after all that was recorded."""
    RECORDER.synchronize()
    return link().handles


def test_every_view_sees_the_new_values_and_the_old_buffer_goes() -> None:
    x = torch.zeros(100, N // 100, device="cuda")
    views = [x.t(), x[3:7], x.detach(), x.data, x.view(-1)]
    before = handle_of(x)
    assert before in live()
    new = torch.randn(100, N // 100)
    assert x.copy_(new) is x
    assert handle_of(x) != before
    for ours, cpu in zip(views, [new.t(), new[3:7], new, new, new.view(-1)], strict=True):
        assert handle_of(ours) == handle_of(x)
        assert torch.equal(ours.cpu(), cpu)
    assert before not in live()
    x.add_(1)
    assert torch.equal(views[1].cpu(), (new + 1)[3:7])


def test_records_from_before_use_the_old_values() -> None:
    x = torch.ones(N, device="cuda")
    y = x * 2
    x.copy_(torch.full((N,), 7.0))
    z = x * 2
    assert y.cpu().unique().tolist() == [2.0]
    assert z.cpu().unique().tolist() == [14.0]


def test_a_copy_of_another_type_is_what_the_device_would_make_of_it() -> None:
    torch.manual_seed(0)
    values = torch.randn(N) * 1000
    for kind in (torch.bfloat16, torch.float16, torch.float64, torch.int32):
        x = torch.empty(N, dtype=kind, device="cuda")
        before = handle_of(x)
        x.copy_(values)
        assert handle_of(x) != before
        assert torch.equal(x.cpu(), values.to(kind))


def test_load_state_dict_uploads_what_is_in_the_file() -> None:
    """One upload a tensor, of exactly its bytes, and no program: so equal weights are equal content on the node."""
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(250, 200), nn.LayerNorm(200), nn.Linear(200, 250))
    ours = nn.Sequential(nn.Linear(250, 200), nn.LayerNorm(200), nn.Linear(200, 250)).to("cuda")
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    large = {id(parameter) for parameter in ours.parameters() if parameter.numel() > N}
    handles = {handle_of(parameter) for parameter in ours.parameters() if id(parameter) in large}
    RECORDER.synchronize()
    ours.load_state_dict(cpu.state_dict())
    assert {id(parameter) for parameter in ours.parameters() if parameter.numel() > N} == large
    assert not handles.intersection(live())
    x = torch.randn(5, 250)
    torch.testing.assert_close(ours(x.to("cuda")).cpu(), cpu(x), rtol=1e-4, atol=1e-5)
    for model, given in ((ours, x.to("cuda")), (cpu, x)):
        model(given).sum().backward()
    optimizer.step()
    torch.optim.SGD(cpu.parameters(), lr=0.1).step()
    for mine, theirs in zip(ours.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_a_value_saved_for_backward_is_guarded_as_ever() -> None:
    x = torch.randn(N, device="cuda", requires_grad=True)
    w = torch.randn(N, device="cuda")
    y = (x * w).sum()
    w.copy_(torch.randn(N))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(lambda x: x[: N // 2], id="a part"),
        pytest.param(lambda x: x[1:], id="not from the start"),
        pytest.param(lambda x: x.view(2, -1).t(), id="turned"),
        pytest.param(lambda x: torch.zeros(8, device="cuda"), id="small"),
    ],
)
def test_other_copies_write_into_the_buffer(part: object) -> None:
    assert callable(part)
    x = torch.zeros(N, device="cuda")
    target: Tensor = part(x)
    before = handle_of(target)
    new = torch.randn(target.shape)
    target.copy_(new)
    assert handle_of(target) == before
    assert torch.equal(target.cpu(), new)


def test_a_row_copied_into_every_row_is_no_whole_copy() -> None:
    x = torch.zeros(4, N, device="cuda")
    before = handle_of(x)
    row = torch.randn(N)
    x.copy_(row)
    assert handle_of(x) == before
    assert torch.equal(x.cpu(), row.expand(4, N))


def test_a_buffer_whose_pointer_was_taken_stays_where_it_is() -> None:
    x = torch.zeros(N, device="cuda")
    pointer = x.data_ptr()
    x.copy_(torch.ones(N))
    assert x.data_ptr() == pointer
    assert x.cpu().unique().tolist() == [1.0]


def test_without_dedup_nothing_moves() -> None:
    transfer.replace_whole(False)
    x = torch.zeros(N, device="cuda")
    before = handle_of(x)
    x.copy_(torch.ones(N))
    assert handle_of(x) == before
