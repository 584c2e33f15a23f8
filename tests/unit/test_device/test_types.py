"""Types and layouts that an operation does not take are refused at the line that uses them; a node never sees them."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.support.device import same
from wooly.counters import COUNTERS


def on(device: str, line: str) -> torch.Tensor:
    values = {
        "torch": torch,
        "flags": torch.tensor([True, False, True], device=device),
        "ints": torch.tensor([1, 2, 3], device=device),
        "floats": torch.tensor([1.0, -2.0, 3.0], device=device),
        "z": torch.tensor([1 + 2j, 3 - 4j, 0], device=device),
        "empty": torch.ones(3, 0, device=device),
        "one": torch.tensor(3.0, device=device),
        "wide": torch.tensor([0.5, 0.25, -1.0], dtype=torch.float64, device=device),
    }
    result: torch.Tensor = eval(line, values)
    return result


@pytest.mark.parametrize(
    "line",
    [
        "z < z",
        "z.clone().lt_(z)",
        "z.fmod(2)",
        "z.clone().clamp_(0, 1)",
        "z ^ z",
        "torch.maximum(z, z)",
        "flags.argmax()",
        "flags.clone().mul_(2)",
        "ints.clone().add_(z)",
        "ints.clone().mul_(2.5)",
        "floats.clone().mul_(1j)",
        "ints - flags",
        "floats - True",
        "ints.clone().sub_(flags, alpha=2)",
        "empty.min()",
        "empty.median(1)",
        "torch.cat([ints, ints], out=ints)",
        "floats.clone().eq_(torch.ones(4, 3, device=floats.device))",
        "one.clone().lt_(empty)",
        "one.clone().logical_and_(empty)",
        "ints[:, None].clone().gcd_(ints)",
        "ints[:, None].clone().lcm_(ints)",
        "floats.abs()[:, None].igamma_(floats.abs())",
        "floats.abs()[:, None].igammac_(floats.abs())",
        "floats[:, None].clone().ldexp_(ints)",
        "ints.clone().ldexp_(floats)",
        "ints.clone().igamma_(floats)",
        "ints.clone().sinc_()",
        "floats.index_select(0, ints[None])",
        "torch.bincount(ints[None])",
        "torch.roll(empty, [1], [0, 1])",
        "torch.roll(empty, [1, 2])",
        "torch.roll(floats, [])",
        "torch.histc(floats / 0, 3)",
        "torch.histc(floats * float('nan'), 3)",
        "torch.histc(floats, 3, 0, float('inf'))",
        "torch.histc(floats, 3, 3, 2)",
        "torch._foreach_addcmul([floats] * 2, [floats] * 2, [floats] * 2, torch.ones(1))",
        *(
            f"torch.nn.functional.grid_sample(floats.expand({x}), floats[:1].expand({grid}))"
            for x, grid in (
                ("1, 1, 3, 3", "1, 1, 1, 3"),
                ("2, 1, 3, 3", "1, 1, 1, 2"),
                ("1, 1, 3, 3", "1, 1, 1, 1, 2"),
                ("1, 1, 3, 3, 3", "1, 1, 1, 1, 2"),
            )
        ),
        *(
            f"floats.clone().view(1, 3).{call}"
            for name, last in (("index_add", ""), ("index_add_", ""), ("index_reduce", ", 'prod'"), ("index_reduce_", ", 'prod'"))
            for call in (
                f"{name}(1, ints[:2] - 1, one{last})",
                f"{name}(1, ints[:1] - 1, floats[:1]{last})",
                f"{name}(1, ints[:2] - 1, floats[:1, None]{last})",
                f"{name}(0, ints[:1] - 1, floats[None, :2]{last})",
                f"{name}(0, ints[:1, None] - 1, floats[None]{last})",
            )
        ),
        "floats.put_(ints[:1], ints[:1])",
        "floats.index_put_((ints[:1],), ints[:1])",
        "floats.index_put_((ints[:0],), ints[0])",
        "torch.index_put(floats, (ints[:1],), ints[:1], accumulate=True)",
        "floats.view(1, 3)[flags]",
        "floats.view(3, 1)[:, flags]",
        "floats.view(1, 3).index_put_((flags,), one)",
        "torch.mean(floats, 0, out=ints)",
        "torch.lerp(ints, floats, 0.3)",
        "torch.zeros(3, 4, device=floats.device).index_put_((ints, ints[:2]), one)",
        "torch.zeros(3, 4, device=floats.device).index_put_((flags, ints), one)",
        "torch.nn.functional.nll_loss(floats.view(1, 3), ints[:1], floats.double())",
        "torch.nn.functional.cross_entropy(floats.view(1, 3), ints[:1], ints)",
        "torch.nn.functional.nll_loss(floats.view(1, 3, 1, 1), ints[:1].view(1, 1, 1), floats.half())",
        "torch.nn.functional.multi_margin_loss(floats.view(1, 3), ints[:1], weight=floats.double())",
        *(
            f"torch.{call}"
            for call in (
                "eq({}, {})",
                "ne({}, {})",
                "logical_and({}, {})",
                "logical_xor({}, {})",
                "where(flags, {}, {})",
                "div({}, {})",
                "div({}, {}, rounding_mode='floor')",
                "cat([{}, {}])",
                "stack([{}, {}])",
                "gcd({}, {})",
                "add({}, {})",
                "lt({}, {})",
            )
            for call in (call.format("ints.to(torch.uint16)", "ints"), call.format("ints.to(torch.int8)", "ints.to(torch.uint64)"))
        ),
        "torch.bmm(flags.view(1, 1, 3), flags.view(1, 1, 3))",
        "torch.linalg.cross(flags.view(1, 3)[:, :2], flags.view(1, 3)[:, :2])",
        "empty[:0].max(0)",
        "empty[:0].min(-1)",
        "empty[:0].nanmedian(-1)",
        "torch.unique(empty, dim=0)",
        "torch.unique(empty[:0], dim=1)",
        "torch.unique_consecutive(empty, dim=0)",
        "torch.stack([floats, floats]) @ ints",
        "torch.stack([floats, floats]).mv(floats.half())",
        "torch.nn.functional.binary_cross_entropy_with_logits(one, one * 0, pos_weight=floats[:1])",
        "torch.mm(floats[:, None], flags[:0][None])",
        "torch.mm(empty, wide[:0, None])",
        "torch.nn.functional.linear(empty, wide[None, :0])",
        "torch.addmm(flags, floats[:, None], floats[None])",
        "torch.addbmm(flags, floats[None, :, None], floats[None, None])",
        "torch.mv(floats[:, None], wide[:1])",
        "torch.linalg.cross(floats, ints)",
        "torch.cdist(floats[:, None], wide[:, None])",
        "torch.nn.functional.grid_sample(floats.reshape(1, 1, 1, 3), wide[:2].reshape(1, 1, 1, 2), align_corners=False)",
        "torch.complex(floats[:0], wide[:0])",
        "torch.polar(floats, wide)",
        "floats.index_copy(0, ints - 1, wide)",
        "floats.clone().index_copy_(0, ints - 1, flags)",
        "floats.index_reduce(0, ints - 1, wide, 'amax')",
        "torch.nn.functional.binary_cross_entropy(floats.sigmoid(), wide.sigmoid())",
        "torch.nn.functional.binary_cross_entropy_with_logits(ints, floats)",
        "torch.nn.functional.binary_cross_entropy_with_logits(floats, floats, pos_weight=flags)",
        "torch.nn.functional.binary_cross_entropy_with_logits(floats, floats, pos_weight=z)",
        "torch.nn.functional.soft_margin_loss(floats, z)",
        "torch.nn.functional.soft_margin_loss(ints, floats)",
        "torch.nn.functional.layer_norm(floats, (3,), wide)",
        "torch.nn.functional.layer_norm(floats, (3,), floats, wide)",
        "torch.nn.functional.group_norm(floats[None], 1, wide)",
        "torch.nn.functional.batch_norm(floats[None], wide, floats)",
        "torch.nn.functional.batch_norm(floats.half()[None], floats.half(), floats.double())",
        "torch.nn.functional.batch_norm(floats[None].long(), floats, floats)",
        "torch.nn.functional.embedding_bag((ints - 1)[None], floats[:, None], per_sample_weights=wide[None], mode='sum')",
        "floats.index_select(0, floats.abs() - 1)",
        "floats.index_select(0, flags)",
        "ints.repeat_interleave(floats.abs())",
        "floats.cumsum(0, dtype=torch.bool)",
        "ints.cumprod(0, dtype=torch.bool)",
        "floats.nansum(dtype=torch.complex64)",
        "z.nansum()",
        "torch.cat([floats], out=ints)",
        *(
            f"torch.{call}"
            for call in (
                "abs(floats, out=wide)",
                "floor(floats, out=wide)",
                "neg(ints, out=floats)",
                "sgn(floats, out=z)",
                "isin(ints, ints, out=ints)",
                "bitwise_not(ints, out=floats)",
                "nan_to_num(floats, out=wide)",
                "signbit(floats, out=ints)",
                "round(floats, out=wide)",
                "isposinf(floats, out=ints)",
                "all(floats, 0, out=one)",
                "any(floats, 0, out=one)",
                "softmax(floats, 0, out=wide)",
                "linalg.vector_norm(floats, out=one.double())",
                "vdot(floats, floats, out=one.double())",
                "cross(floats, floats, out=wide)",
                "masked_select(floats, flags, out=wide)",
                "nonzero(floats, out=floats)",
                "max(floats, 0, out=(one.half(), one.long()))",
                "scatter_add(floats, 0, ints - 1, floats, out=wide)",
                "linalg.inv(floats[:1, None], out=ints)",
                "mean(ints, 0, out=one)",
                "nansum(floats, 0, out=one.long())",
                "searchsorted(floats, floats, out=floats)",
                "frexp(floats, out=(wide, ints.int()))",
                "special.airy_ai(floats, out=ints)",
                "nn.functional.gelu(floats, out=wide)",
                "cumsum(floats, 0, out=flags)",
            )
        ),
        "torch.bucketize(z, floats[:0])",
        "torch.mv(flags[:, None], flags[:1])",
        "torch.isin(2, ints.to(torch.uint32))",
        "torch.isin(ints.to(torch.uint16), ints.to(torch.uint16))",
        "torch.isin(ints.to(torch.uint16), ints)",
        "torch.nn.functional.grid_sample(floats.half().reshape(1, 1, 1, 3), floats[:2].reshape(1, 1, 1, 2), align_corners=False)",
    ],
)
def test_what_the_cpu_refuses_is_refused_and_the_session_lives(line: str) -> None:
    with pytest.raises((RuntimeError, IndexError, TypeError)) as wanted:  # which of them is torch's choice; 2.15 changed one
        on("cpu", line)
    with pytest.raises(wanted.type):
        on("cuda", line)
    torch.cuda.synchronize()


def test_masks_that_do_not_fit_raise_index_error() -> None:
    with pytest.raises(RuntimeError):
        torch.ones(4, device="cuda").masked_select(torch.ones(4, 2, dtype=torch.bool, device="cuda"))
    mask = torch.tensor([True, False], device="cuda")
    for shape in ((3,), (1, 2, 1)):
        x = torch.ones(shape, device="cuda")
        with pytest.raises(IndexError, match=r"The shape of the mask \[2\] at index 0 does not match the shape of the indexed tensor"):
            x[mask] = 3
        with pytest.raises(IndexError, match=r"The shape of the mask \[2\] at index 0"):
            x[mask]
        assert (x == 1).all()


@pytest.mark.parametrize(
    "line",
    [
        "one.flip(0)",
        "torch.arange(0, 3, 0.1, dtype=torch.bfloat16, device=floats.device)",
        "torch.arange(5, -2, -0.3, dtype=torch.float16, device=floats.device)",
        "torch.nn.functional.adaptive_max_pool1d(torch.arange(133.0, device=floats.device).view(1, 1, 133), 99)",
        "torch.nn.functional.adaptive_max_pool2d(torch.arange(1089.0, device=floats.device).view(1, 1, 33, 33), 20)",
        "torch.nn.functional.adaptive_max_pool3d(torch.arange(210.0, device=floats.device).view(1, 1, 5, 6, 7), 5)",
        "torch.special.zeta(floats.abs() + 1, 3)",
        "torch.special.zeta(3, floats.abs() + 1)",
        "flags.clone().index_add_(0, ints - 1, flags, alpha=2)",
        "flags.index_add(0, ints[:2], flags[:2])",
        "ints.to(torch.uint16) == one",
        "torch.where(flags, ints.to(torch.uint16), 0.5)",
        "torch.cat([ints.to(torch.uint32), floats])",
        "ints.to(torch.uint64).div(2)",
        "ints.to(torch.uint8) == ints",
        "floats.expand(2, 3).zero_()",
        "floats.expand(2, 3).fill_(7)",
        "torch.nan_to_num(z / 0)",
        "floats.clone().copy_(2)",
        "flags.clone().logical_xor_(ints)",
        "torch.cumsum(floats * 1.5, 0, out=ints.clone())",
        "torch.cumprod(floats * 1.5, 0, out=ints.clone())",
        "torch.sum(floats * 1.5, 0, out=ints[0].clone())",
        "torch.prod(floats * 1.5, 0, out=ints[0].clone())",
        "torch.sum(ints, 0, out=floats[0].clone())",
        "torch.sum(floats, 0, out=flags[0].clone())",
        "torch.prod(ints.short(), 0, out=flags[0].clone())",
        "torch.all(ints.to(torch.uint8), 0, out=flags[0].clone())",
        "torch.nansum(ints, 0, out=flags[0].clone())",
        "torch.mean(floats / 7, 0, out=wide[0].clone())",
        "torch.nansum(floats / 7, 0, out=wide[0].clone())",
        "torch.nansum(floats.reshape(3, 1)[:0], 0, out=z[:0].clone())",
        "torch.square(floats.half() / 7, out=floats.clone())",
        "torch.special.hermite_polynomial_h(-1.5, floats, out=floats[:0].clone())",
        "torch.special.chebyshev_polynomial_w(floats, 2, out=wide.clone())",
        "floats.index_add(0, ints[1], floats[:1], alpha=3)",
        "floats[None].index_reduce(1, ints[1], floats[:1, None], 'prod')",
        "(z * 2).conj().copy_(flags)",
        "torch.histc(floats, 4)",
        "torch.histc(floats[:1].expand(3), 4)",
        "torch.histc(floats[:0], 4)",
        "torch._foreach_addcmul([floats] * 2, [floats] * 2, [floats] * 2, torch.tensor([2.0, 3.0]))[1]",
        "torch._foreach_addcdiv_([floats.clone()], [floats], [floats], torch.tensor([2.0]))[0]",
        "(z * 2).conj().copy_(ints)",
        "torch.view_as_real((z * 2).conj().copy_(floats).conj().resolve_conj())[:, 1].signbit()",
        "(z * 2).conj().imag.copy_(flags)",
        "torch.linalg.vector_norm(floats[:, None], 0.01, dim=1)",
        "torch.nn.functional.pairwise_distance(floats[:, None], wide[:, None].float(), 1e-3)",
        "torch.addcmul(floats.half(), floats.half() / 7, floats.half() / 3, out=floats.clone())",
        "torch.remainder(ints, ints, out=floats.clone())",
        "torch.stack([flags, ~flags]).sum(1, dtype=torch.bool)",
        "torch.stack([flags, flags | True]).prod(1, dtype=torch.bool)",
        "flags[:0].prod(dtype=torch.bool)",
        "torch.nn.functional.multilabel_margin_loss(floats * 0.1, torch.tensor([0, -1, 2], device=floats.device))",
        "(floats * -1.5).to(torch.uint8)",
        "torch.tensor([-1.0, 300, 1e10, float('nan')], device=floats.device).to(torch.uint8).to(torch.float32)",
        "ints.to(torch.uint8).copy_(floats.half())",
        "flags.clamp(-8, 8)",
        "flags.clamp(max=0.5)",
        "torch.bucketize(flags[:0], flags[1:2])",
        "torch.bincount(ints[:0], minlength=4, weights=floats[:0])",
        "torch.addbmm(ints, ints.expand(3, 3, 3), ints.expand(3, 3, 3), beta=0.6, alpha=0.2)",
        "torch.addbmm(ints.char(), ints.char().expand(3, 3, 3) * 9, ints.char().expand(3, 3, 3) * 8)",
        "torch.nn.functional.layer_norm(floats.half(), (3,), floats.half(), floats.half())",
        "torch.nn.functional.batch_norm(floats.bfloat16()[None], floats, floats.abs(), floats)",
        "torch.nn.functional.binary_cross_entropy(floats.sigmoid(), floats.sigmoid(), weight=wide)",
        "torch.bincount(ints, weights=floats.half())",
        "torch.bincount(ints, weights=floats)",
        "ints.nansum(dtype=torch.complex64)",
        "(empty > 0) @ flags[:0]",
        "torch.cumsum(one, 0, out=flags[:0].clone())",
        "torch.linalg.lstsq(torch.stack([floats, floats.square(), floats.exp()]).T[:, :2], floats[:, None].expand(3, 2)).solution",
        "torch.nonzero(floats.expand(2, 3) > 0)",
        "torch.isin(ints.to(torch.uint32), 2)",
        "torch.nn.functional.multi_margin_loss(floats, one.long() - 1, reduction='none')",
        "torch.nn.functional.multi_margin_loss(floats[None], ints[:1], reduction='none')",
        "torch.isin(ints.to(torch.uint32), floats)",
        "torch.cumsum(empty, 0, out=flags[:0].clone())",
        "(-floats * 0).cumsum(0).view(torch.int32)",
        "(-floats[1:2] * 0).half().cumsum(0).view(torch.int16)",
    ],
)
def test_what_the_cpu_computes(line: str) -> None:
    same(on("cuda", line), on("cpu", line))


def test_an_output_that_is_also_an_input_keeps_its_sizes_until_it_is_read() -> None:
    for device in ("cpu", "cuda"):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        torch.amax(x.clone(), 0, out=x)
        y = torch.zeros(1, 0, device=device)
        torch.sum(y, 0, out=y)
        assert x.tolist() == [3, 4, 5] and y.shape == (0,)


def test_windows_that_share_elements_cannot_be_written() -> None:
    windows = torch.arange(5.0, device="cuda").unfold(0, 2, 1)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        windows.add_(1)
    assert windows.sum().item() == 16


@pytest.mark.parametrize("line", ["floats ^ torch.ones(4, device=dev)", "torch.fmod(flags, torch.ones(2, dtype=torch.bool, device=dev))"])
def test_sizes_that_do_not_match_are_reported_before_types_that_are_not_taken(line: str) -> None:
    for device in ("cpu", "cuda"):
        names = {"torch": torch, "dev": device, "floats": torch.ones(3, device=device), "flags": torch.ones(3, device=device).bool()}
        with pytest.raises(RuntimeError, match=r"size|broadcast") as raised:
            eval(line, names)
        assert raised.type is RuntimeError


@pytest.mark.parametrize("call", ["median(1)", "nanmedian(1)", "mode(1)", "kthvalue(1, 1)"])
def test_a_dimension_without_elements_has_none_to_pick(call: str) -> None:
    for device in ("cpu", "cuda"):
        x = torch.ones(3, 0, device=device)
        with pytest.raises(IndexError, match=r"Expected reduction dim 1 to have non-zero size"):
            eval(f"x.{call}", {"x": x})


def test_shifts_of_bool_give_integers_and_do_not_fit_in_place() -> None:
    for device in ("cpu", "cuda"):
        x = torch.tensor([True, False], device=device)
        for shifted in (x << 1, x << torch.ones(2, dtype=torch.int64, device=device)):
            assert shifted.dtype == torch.int64 and shifted.tolist() == [2, 0]
        with pytest.raises(RuntimeError, match="can't be cast"):
            x <<= 1
        with pytest.raises(RuntimeError, match="can't be cast"):
            x >>= 1


def test_empty_tensors_of_types_that_are_not_taken_pass_where_torch_lets_them() -> None:
    for device in ("cpu", "cuda"):
        x = torch.ones(0, 4, dtype=torch.complex64, device=device)
        assert torch.amax(x, 1).shape == (0,) and torch.log_softmax(x, 0).shape == (0, 4)


@pytest.mark.parametrize("name", ["huber_loss", "soft_margin_loss", "mse_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_of_two_types_have_the_type_that_torch_gives_them(name: str, reduction: str) -> None:
    loss = getattr(torch.nn.functional, name)
    for types in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)):
        on = [loss(torch.full((3,), 2.0, dtype=types[0], device=d), torch.full((3,), 0.5, dtype=types[1], device=d), reduction=reduction)
              for d in ("cpu", "cuda")]  # fmt: skip
        assert on[1].dtype == on[0].dtype and torch.allclose(on[1].cpu(), on[0], rtol=1e-2)


@pytest.mark.parametrize("line", ["x.median()", "x.nanmedian()"])
def test_the_median_of_no_flags_is_what_torch_says(line: str) -> None:
    ours, cpu = (eval(line, {"x": torch.ones(0, dtype=torch.bool, device=device)}) for device in ("cuda", "cpu"))
    assert ours.dtype == cpu.dtype and torch.equal(ours.cpu(), cpu)


@pytest.mark.parametrize("call", ["torch.arange(6, out=out)", "torch.linspace(0, 1, 6, out=out)"])
@pytest.mark.parametrize("view", ["x.view(3, 2)", "x.view(2, 3).t()", "x.view(6, 1, 1)"])
def test_an_output_to_be_filled_keeps_a_shape_of_as_many_elements(call: str, view: str) -> None:
    filled = []
    for device in ("cpu", "cuda"):
        out = eval(view, {"x": torch.zeros(6, device=device)})
        eval(call, {"torch": torch, "out": out})
        filled.append(out)
    assert filled[1].size() == filled[0].size() and filled[1].stride() == filled[0].stride() and torch.equal(filled[1].cpu(), filled[0])


def test_flags_are_sorted_into_boundaries_of_another_type() -> None:
    flags, bounds = torch.tensor([True, False]), torch.tensor([-1.0, 0.0, 1.0])
    assert torch.bucketize(flags.cuda(), bounds.cuda()).tolist() == torch.bucketize(flags, bounds).tolist()
    assert torch.searchsorted(bounds.cuda(), flags.cuda()).tolist() == torch.searchsorted(bounds, flags).tolist()


_IN_THE_DEFAULT_TYPE = """
    x/3
    torch.tensor([16777217],device=x.device)/1 x*0.1 0.1*x x+0.1 x-0.1 x**0.1 0.1**x x.sqrt() x.exp() x.log() x.sigmoid() x.erf() x.rsqrt()
    x.sin() torch.atan2(x,x+1) torch.xlogy(x,x) torch.logsumexp(x,0) torch.clamp(x,0.1,2.1) torch.digamma(x) x*(0.1+0.2j) x.bool()*0.1
    x/x.flip(0) torch.where(x>1,x,0.1) torch.full_like(x,0.1,dtype=None) torch.full((2,),0.1,device=x.device) torch.add(x,0.1,alpha=3)
     x*0.3 torch.linspace(0,1,7,device=x.device) torch.arange(0,1,0.1,device=x.device) x.to(torch.uint8)/7
    torch.reciprocal(x) torch.addcmul(x*0.1,x,x) torch.nn.functional.silu(x*0.1) torch.logaddexp(x*0.1,x*0.2) torch.hypot(x*0.1,x*0.2)
    torch.deg2rad(x) torch.softmax(x*0.1,0) torch.softmax(x,0,dtype=torch.get_default_dtype()) x.cumsum(0)/3 torch.special.expit(x)
    torch.remainder(x,0.7) torch.fmod(x,0.7) x.float_power(0.3) torch.tensor(0.1,device=x.device)*x torch.special.i0(x) x.tan() x.log1p()
    x.sum()*0.1 torch.var_mean(x*0.1) torch.special.entr(x) torch.logit(x*0.1)
""".split()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("line", _IN_THE_DEFAULT_TYPE)
def test_integers_become_numbers_of_the_default_type(line: str, dtype: torch.dtype) -> None:
    """With all of its digits, and nothing is remembered of the type before."""
    given = [torch.arange(1, 5, device=device) for device in ("cuda", "cpu")]
    before = [eval(line, {"torch": torch, "x": x}) for x in given]
    torch.set_default_dtype(dtype)
    try:
        results = [eval(line, {"torch": torch, "x": x}) for x in given]
    finally:
        torch.set_default_dtype(torch.float32)
    for ours, expected in (before, results):
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (ours, expected)), strict=True):
            same(one, other)


@pytest.mark.parametrize(
    "line",
    [
        "torch.add(x, 1, out=out)",
        "torch.mul(x, x.t().contiguous().t(), out=out)",
        "torch.exp(x, out=out)",
        "torch.clamp(x, 0, 1, out=out)",
        "torch.where(x > 0, x, -x, out=out)",
        "torch.pow(x, 2, out=out)",
        "torch.erfinv(x, out=out)",
        "torch.sum(y, 2, out=out)",
        "torch.amax(y, 0, keepdim=True, out=out)",
        "torch.cumsum(x, 1, out=out)",
        "torch.sort(x, 0, out=(out, places))[0]",
        "torch.mm(x, x.t(), out=out)",
        "torch.cat([y, y], 1, out=out)",
        "torch.index_select(y, 1, places[:0], out=out)",
        "torch.linalg.inv(torch.mm(x, x.t()) + torch.eye(2, device=x.device), out=out)",
        "torch.tril(x, out=out)",
        "torch.slice_scatter(y, y[:1], 0, 1, 2, out=out)",
        "torch.digamma(x, out=out)",
        "torch.renorm(y, 1, 1, 3, out=out)",
    ],
)
def test_an_output_that_is_resized_has_the_layout_of_the_result(line: str) -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(6.0, device=device).reshape(3, 2).t() / 7
        y = torch.arange(48.0, device=device).reshape(2, 3, 4, 2).to(memory_format=torch.channels_last)
        places, out = torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device)
        names = {"torch": torch, "x": x, "y": y, "places": places, "out": out}
        result: torch.Tensor = eval(line, names)
        assert result is out
        return result

    same(run("cuda"), run("cpu"))


@pytest.mark.parametrize(
    "name",
    """
    add complex copysign divide eq floor_divide heaviside ldexp logaddexp logaddexp2 logical_and logical_or logical_xor polar pow
    special.xlog1py true_divide where xlogy
    """.split(),
)
def test_two_operands_of_different_layouts_decide_the_layout_together(name: str) -> None:
    x = torch.arange(1.0, 25.0).reshape(2, 3, 4)
    operands = [
        *(x.transpose(a, b).contiguous().transpose(a, b) for a, b in ((0, 0), (0, 2), (1, 2))),
        torch.tensor(2.0), torch.ones(1, 3, 1), torch.ones(3, 1).expand(2, 3, 4), torch.arange(1.0, 49.0).reshape(2, 3, 8)[:, :, ::2],
    ]  # fmt: skip
    call = {"divide": lambda a, b: torch.div(a, b, rounding_mode="floor"), "where": lambda a, b: torch.where(a > 1, a, b)}.get(
        name
    ) or eval(f"torch.{name}", {"torch": torch})
    placed = [torch.ones(3, 1, device="cuda").expand(2, 3, 4) if 0 in one.stride() else _with_layout(one) for one in operands]
    for (a, b), (ours_a, ours_b) in zip(itertools.product(operands, repeat=2), itertools.product(placed, repeat=2), strict=True):
        same(call(ours_a, ours_b), call(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "call",
    [
        *(
            f"torch.{name}(a, b)"
            for name in "add atan2 clamp_max div eq fmax fmod hypot lt minimum mul pow remainder rsub sub xlogy".split()
        ),
        "torch.add(a, b, alpha=2)",
        "F.mse_loss(a, b, reduction='none')",
        "F.smooth_l1_loss(a, b, reduction='none')",
        *(f"aten.{name}_backward(a, b)" for name in "gelu hardsigmoid hardswish sigmoid tanh".split()),
        "aten.elu_backward(a, 1, 1, 1, False, b)",
        "aten.leaky_relu_backward(a, b, 0.1, False)",
        "aten.softplus_backward(a, b, 1, 20)",
        "aten.threshold_backward(a, b, 0)",
        *(f"torch.{name}(a, b, out=a.new_empty(0))" for name in ("add", "maximum", "mul")),
        "torch.mul(a, 2.0, out=b.new_empty(0))",
        "torch.where(torch.ones(3, 4, device=a.device) > 0, a, b)",
        "torch.where(a > 0, a[:1, :, :1], b[:, :1])",
        "torch.where(a > 0, b, 1.0)",
        "torch.where(torch.ones(3, 4, device=a.device) > 0, a[:, :1], b[:1, :1], out=a.new_empty(0))",
    ],
)
def test_operands_of_halves_decide_the_layout_as_those_of_floats(call: str, dtype: torch.dtype) -> None:
    """Gradients of sums are expanded: a result of one and of a transposed tensor has the layout of the latter."""

    def strides(device: str) -> list[tuple[int, ...]]:
        x = torch.ones(2, 3, 4, dtype=dtype, device=device)
        operands = [
            *(torch.ones(size, dtype=dtype, device=device).transpose(a, b) for size, a, b in (((4, 3, 2), 0, 2), ((2, 4, 3), 1, 2))),
            x,
            x[:1, :1, :1].expand(2, 3, 4),
            x[:, :1].expand(2, 3, 4),
            torch.ones(4, 6, 2, dtype=dtype, device=device)[:, ::2].transpose(0, 2),
            torch.ones(4, 1, dtype=dtype, device=device).unsqueeze(-1).transpose(0, -1).expand(2, 3, 4),
        ]
        names = {"torch": torch, "F": torch.nn.functional, "aten": torch.ops.aten}
        return [eval(call, names | {"a": a, "b": b}).stride() for a, b in itertools.product(operands, repeat=2)]

    assert strides("cuda") == strides("cpu")


def test_a_result_of_five_dimensions_is_laid_out_by_operands_of_fewer() -> None:
    def strides(device: str) -> tuple[int, ...]:
        mask = (torch.ones(3, 2, 1, 1, device=device) > 0).expand(3, 2, 1, 2)
        return torch.where(mask, torch.ones(2, 1, 2, 3, 2, device=device).permute(4, 3, 2, 1, 0), torch.zeros((), device=device)).stride()

    fallbacks = len(COUNTERS.fallbacks)
    assert strides("cuda") == strides("cpu")
    assert len(COUNTERS.fallbacks) == fallbacks


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (0, 2, 1, 3)])
@pytest.mark.parametrize(
    "line",
    [
        "x.roll((1, 1), (0, 2))",
        "F.pad(x, (1, 1, 1, 1), mode='reflect')",
        "F.pad(x, (1, 1, 1, 1), mode='replicate')",
        "F.channel_shuffle(x, 2)",
        "F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)",
        "F.rrelu(x, training=False)",
        "F.logsigmoid(x)",
        "torch.isin(x, x[0, 0, 0])",
        "torch.isin(x, 0.0)",
        "torch.angle(x + 1j)",
        "torch.angle(x)",
        "x[:, :1, :1].roll(1, 0)",
        "x[:1].roll(2, 2)",
        "x.index_fill(1, torch.tensor([0, 2], device=x.device), 2.0)",
        "F.batch_norm(x, None, None, training=True)",
        "F.batch_norm(x, x.new_zeros(4), x.new_ones(4))",
        "torch._foreach_pow(2.0, [x])[0]",
    ],
)
def test_results_are_laid_out_as_on_the_cpu(line: str, order: tuple[int, ...]) -> None:
    laid_out = torch.arange(288.0).sin().reshape(2, 4, 6, 6).permute(order).contiguous().permute(sorted(range(4), key=order.__getitem__))
    ours, theirs = (eval(line, {"torch": torch, "F": torch.nn.functional, "x": x}) for x in (_with_layout(laid_out), laid_out))
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize(
    "line", ["x[i]", "x[:, i]", "x[None, i]", "x[:, None, i]", "x[i, None]", "x[i, i]", "x[i[:, None], i]", "x[..., i]", "x[i, :, i]"]
)
def test_what_indices_pick_is_laid_out_as_on_the_cpu(line: str) -> None:
    for order in itertools.permutations(range(3)):
        results = []
        for device in ("cuda", "cpu"):
            x = torch.arange(18.0, device=device).reshape(2, 3, 3).permute(order)
            results.append(eval(line, {"torch": torch, "x": x, "i": torch.tensor([0, 1, 0, 1], device=device)}))
        ours, theirs = results
        assert ours.stride() == theirs.stride() and torch.equal(ours.cpu(), theirs), order


def _with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """On the device, with its strides."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True)) + 1
    return torch.zeros(span, device="cuda").as_strided(tensor.size(), tensor.stride()).copy_(tensor)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (2, 0, 3), (0, 0)])
def test_tensors_without_elements_have_the_strides_of_torch(shape: tuple[int, ...]) -> None:
    for line in ("x", "x + x", "x.cpu()", "x.clone()", "torch.cat([x, x])", "torch.stack([x, x])", "x @ x.mT"):
        for _ in range(2):  # the second call takes another way
            ours, theirs = (eval(line, {"torch": torch, "x": torch.ones(shape, device=device)}) for device in ("cuda", "cpu"))
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride()), line


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "line",
    [
        "torch.div(x, y, rounding_mode='trunc')",
        "torch.div(x, y, rounding_mode='floor')",
        "x // y",
        "torch.div(x, y[:1], rounding_mode='floor')",
        "torch.div(x, 0.3, rounding_mode='trunc')",
        "x // 0.3",
        "2.5 // y",
        "x % y",
        "x % 1.7",
        "1.7 % y",
        "x.fmod(0.3)",
        "x.clone().fmod_(y)",
        "(x * 100) // (y * 0)",
    ],
)
def test_quotients_and_remainders_of_halves_are_those_of_torch(line: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = ((torch.randn(4000, generator=generator) * scale).to(dtype) for scale in (10, 3))
    same(eval(line, {"torch": torch, "x": x.cuda(), "y": y.cuda()}), eval(line, {"torch": torch, "x": x, "y": y}))
