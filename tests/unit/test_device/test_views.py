"""Views share memory, as torch says they do, and cost no instruction."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from wooly.device.backend import HAS_SWAP
from wooly.device.recorder import RECORDER


def base() -> torch.Tensor:
    return torch.arange(24.0, device="cuda").reshape(2, 3, 4)


def test_views_record_nothing() -> None:
    x = base()
    RECORDER.flush()
    x.view(6, 4).t()[1:, ::2].unsqueeze(0).expand(5, -1, -1).permute(2, 1, 0).squeeze()
    x.unfold(2, 2, 1).diagonal(0, 0, 1)[:0]
    assert not RECORDER.pending


@pytest.mark.parametrize(
    "change",
    [
        "x.t_()",
        "x.squeeze_()",
        "x.unsqueeze_(1)",
        "x.transpose_(0, 1)",
        "x.swapaxes_(0, 1)",
        "x.as_strided_((2,), (3,), 1)",
        "x.resize_(2, 2)",
        "x.resize_(7, 3)[:3].zero_()",
        "x.set_(x[1:])",
        "x.data.t_()",
    ],
)
def test_inplace_metadata_changes(change: str) -> None:
    ours, cpu = torch.arange(12.0, device="cuda").reshape(4, 3), torch.arange(12.0).reshape(4, 3)
    exec(change, {"x": ours})
    exec(change, {"x": cpu})
    assert ours.shape == cpu.shape and ours.stride() == cpu.stride()
    kept = min(ours.numel(), 12)
    assert torch.equal(ours.flatten()[:kept].cpu(), cpu.flatten()[:kept])


@pytest.mark.parametrize("use", ["x.clone()", "x.resolve_conj()", "x * 2", "1 / x", "x.imag", "x.conj().imag + 1", "x.cpu()", "x.log10()"])
def test_a_tensor_with_both_lazy_bits(use: str) -> None:
    """Negated and conjugated lazily: both are applied, whichever operation reads the tensor."""
    values = torch.tensor([1 + 2j, -3 + 0.5j, 2 - 1j])
    both = {device: torch._neg_view(values.to(device)).conj() for device in ("cuda", "cpu")}
    assert both["cuda"].is_conj() and both["cuda"].is_neg()
    ours, cpu = (eval(use, {"x": x}) for x in both.values())
    torch.testing.assert_close(ours.cpu(), cpu)


def test_writes_through_views_are_seen_by_all() -> None:
    results = []
    for device in ("cuda", "cpu"):
        x = torch.zeros(3, 4, device=device)
        column, block = x.t()[1], x[1:, 2:]
        column += 5
        block.copy_(torch.arange(4.0).reshape(2, 2))
        x[0].fill_(7)
        x[:, 3].mul_(2)
        x.view(-1)[::5] = -1
        results.append([t.cpu() for t in (x, column, block)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_views_know_their_base_and_versions() -> None:
    x = torch.ones(4, device="cuda")
    assert x[1:]._base is x
    w = torch.ones(3, device="cuda", requires_grad=True)
    z = w * 2
    y = z * z
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_growth_keeps_contents_and_other_views_follow() -> None:
    """torch resizes the storage in place: tensors that share it see the larger one (on builds that let us do the same)."""
    for device in ("cuda", "cpu"):
        x = torch.arange(4.0, device=device)
        other = x[1:]
        x.resize_(6)
        x[4:] = 9
        other += 1
        follows = device == "cpu" or HAS_SWAP
        assert x.cpu().tolist() == ([0, 2, 3, 4, 9, 9] if follows else [0, 1, 2, 3, 9, 9])


def test_lazy_bits_are_resolved_where_values_are_needed() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    for ours, cpu in ((z.to("cuda").conj(), z.conj()), (z.to("cuda").conj().imag, z.conj().imag)):
        assert torch.equal(ours.cpu(), cpu)
        assert torch.equal(ours.clone().cpu(), cpu)
        assert torch.equal((ours * 2).cpu(), cpu * 2)
        target = torch.zeros_like(cpu).to("cuda")
        target.copy_(ours)
        assert torch.equal(target.cpu(), cpu)
    assert torch.equal((z.to("cuda").conj().reshape(1, 2) @ z.to("cuda")).cpu(), z.conj().reshape(1, 2) @ z)


def test_out_arguments_are_resized_and_checked() -> None:
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(3, device="cuda"), 2, out=out)
    assert out.tolist() == [3, 3, 3]
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mul(torch.ones(2, 2, device="cuda"), 4, out=out)
    assert out.tolist() == [[4, 4], [4, 4]]
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(torch.ones(2, device="cuda"), 1, out=torch.empty(2, dtype=torch.int64, device="cuda"))
    strided = torch.zeros(4, device="cuda")
    torch.add(torch.ones(2, device="cuda"), 1, out=strided[::2])
    assert strided.tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_resized_outputs_of_nan_to_num_are_laid_out_as_on_the_cpu(dtype: torch.dtype) -> None:
    """Of integers, which it copies, in rows; of floats like the operand."""

    def resized(device: str) -> tuple[tuple[int, ...], list[object]]:
        out = torch.empty(0, dtype=dtype, device=device)
        torch.nan_to_num(torch.arange(24, device=device).reshape(2, 4, 3).to(dtype).movedim(0, 2), out=out)
        return out.stride(), out.tolist()

    assert resized("cuda") == resized("cpu")


@pytest.mark.parametrize("x", ["base", "base[:, 1:, ::2]", "base.transpose(0, 2)", "base[1]"])
def test_scattering_into_a_storage(x: str) -> None:
    """Positions of as_strided_scatter count in the storage, whatever view of it is given; the view's strides are kept."""
    results = []
    for device in ("cuda", "cpu"):
        given = eval(x, {"base": torch.arange(24.0, device=device).reshape(2, 3, 4)})
        results.append(torch.as_strided_scatter(given, torch.full((2, 2), -1.0, device=device), (2, 2), (5, 2), 3))
    assert results[0].stride() == results[1].stride()
    assert torch.equal(results[0].cpu(), results[1])


def test_a_copy_in_a_shape_that_has_no_view() -> None:
    x = torch.arange(3.0, device="cuda").expand(2, 3)
    assert torch.view_copy(x, (6,)).tolist() == [0, 1, 2, 0, 1, 2]


def test_a_view_of_eight_dimensions_that_do_not_merge_is_copied() -> None:
    """More loops than a fused kernel has."""
    x = torch.arange(48.0).reshape(2, 2, 3, 4)
    assert torch.equal(x.cuda().repeat(*[2] * 8).cpu(), x.repeat(*[2] * 8))
    y = x.cuda().as_strided((2,) * 9, (1, 0) * 4 + (1,))
    assert torch.equal((y + 1).half().cpu(), (x.as_strided((2,) * 9, (1, 0) * 4 + (1,)) + 1).half())
    assert torch.equal(y.sum((0, 2, 5)).cpu(), y.cpu().sum((0, 2, 5)))


@pytest.mark.parametrize("call", ["torch.select_scatter(x, x[0] * 2, 0, 0)", "torch.slice_scatter(x, x[1:] * 3, 0, 1)"])
@pytest.mark.parametrize(
    "view", ["b[:3].as_strided((2, 2), (1, 1))", "b.reshape(2, 3).t()", "b.as_strided((2, 2), (3, 1))", "b[1:3].expand(2, 2)"]
)
def test_scattering_into_a_copy_of_a_view_keeps_its_strides_and_the_elements_that_share_memory(call: str, view: str) -> None:
    ours, cpu = (eval(call, {"torch": torch, "x": eval(view, {"b": torch.arange(1.0, 7.0).to(d)})}) for d in ("cuda", "cpu"))
    assert ours.stride() == cpu.stride() and torch.equal(ours.cpu(), cpu)


def test_a_tensor_copied_to_itself_stays_as_it_is_even_if_it_is_expanded() -> None:
    x = torch.arange(3.0, device="cuda").expand(2, 3)
    assert x.copy_(x) is x and x.tolist() == [[0.0, 1.0, 2.0]] * 2


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize(
    "write",
    [
        lambda x, mask: x.masked_fill_(mask, 2.0),
        lambda x, mask: x.masked_fill_(mask[0], torch.tensor(2.0)),
        lambda x, mask: x.__setitem__(mask, 5.0),
        lambda x, mask: x.index_fill_(0, torch.tensor([1], device=x.device), 3.0),
        lambda x, mask: x.index_fill_(2, torch.tensor([0, 2], device=x.device), 3.0),
    ],
)
def test_what_may_write_an_expanded_tensor(write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """A causal mask that was expanded, say. Torch warns."""
    found = []
    for device in ("cpu", "cuda"):
        mask = torch.zeros(2, 2, 3, 3, dtype=torch.bool)
        mask[1, 0, 0, 1] = mask[0, 0, 2, 2] = mask[0, 1, 2, 2] = True
        x = torch.arange(9.0).view(3, 3).to(device)[None, None].expand(2, 2, 3, 3)
        write(x, mask.to(device))
        found.append(x.cpu())
    torch.testing.assert_close(*found)
