"""Training for numbers of few bits gives what the CPU gives, without it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

from wooly import stats

QUANT: Any = quantization
"""torch annotates few of its functions."""


def near(ours: Any, theirs: Any) -> None:
    if isinstance(ours, Tensor):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)
    elif isinstance(ours, dict):
        near(list(ours.values()), list(theirs.values()))
    else:
        for our, their in zip(ours, theirs, strict=True):
            near(our, their)


@pytest.mark.parametrize("backend", ["x86", "qnnpack"])
def test_quantisation_aware_training(backend: str) -> None:
    """By channel, where scales are made at the first pass, and as a whole; with observers off, then with rounding off."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).train()
    made.qconfig = QUANT.get_default_qat_qconfig(backend)  # type: ignore[assignment]  # torch looks for it in any module
    batches = torch.randn(5, 2, 1, 6, 6).unbind()

    def results(device: str) -> list[Any]:
        model = QUANT.prepare_qat(copy.deepcopy(made)).to(device)
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
        for i, batch in enumerate(batches):
            model.apply([lambda m: m, lambda m: m, QUANT.disable_observer, lambda m: m, QUANT.disable_fake_quant][i])
            optimizer.zero_grad()
            out = model(batch.to(device))
            out.square().sum().backward()
            optimizer.step()
            found += [out, [p.grad for p in model.parameters()], model.state_dict()]
        return found

    before = stats()["fallbacks"]
    ours = results("cuda")
    assert stats()["fallbacks"] == before
    near(ours, results("cpu"))


@pytest.mark.parametrize("scheme", [torch.per_tensor_symmetric, torch.per_tensor_affine])
@pytest.mark.parametrize("change", [lambda x: x, lambda x: x.abs(), lambda x: -x.abs(), lambda x: x * 1e-7, torch.zeros_like])
def test_the_scale_of_a_range(scheme: torch.qscheme, change: Any) -> None:
    x = change(torch.linspace(-3, 5, 40))
    ours, theirs = (QUANT.FusedMovingAvgObsFakeQuantize(quant_min=0, quant_max=255, qscheme=scheme).to(d) for d in ("cuda", "cpu"))
    near(ours(x.cuda()), theirs(x))
    near([ours.scale, ours.zero_point], [theirs.scale, theirs.zero_point])


def test_rounding_by_numbers_and_tensors() -> None:
    x = torch.linspace(-20, 20, 24).view(3, 8)

    def results(device: str) -> list[Tensor]:
        there = x.to(device).requires_grad_()
        scales, zeros = torch.linspace(0.1, 0.3, 8, device=device), torch.arange(8, dtype=torch.int32, device=device)
        outs = [
            torch.fake_quantize_per_tensor_affine(there, 0.1, 3, -128, 127),
            torch.fake_quantize_per_tensor_affine(there, scales[0], zeros[0], 0, 255),
            torch.fake_quantize_per_channel_affine(there, scales, zeros, 1, -128, 127),
            torch.fake_quantize_per_tensor_affine(there.half(), 0.1, 3, -128, 127).float(),
        ]
        return [*outs, *(torch.autograd.grad(out.sum(), there)[0] for out in outs)]

    near(results("cuda"), results("cpu"))
    with pytest.raises(RuntimeError, match="`zero_point` must be between"):
        torch.fake_quantize_per_tensor_affine(x.cuda(), 0.1, 300, 0, 255)


@pytest.mark.parametrize("inner_tiles", [2, 4, 8])
def test_weights_of_four_bits(inner_tiles: int) -> None:
    """In the order of CUDA's kernel, which files have; products as of the CPU's packed weights, which have an order of their own."""
    torch.manual_seed(0)
    aten: Any = torch.ops.aten
    weight, group = torch.randint(0, 16, (32, 256), dtype=torch.int32), 64
    bytes_of_two = (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8)
    packed = aten._convert_weight_to_int4pack(bytes_of_two.cuda(), inner_tiles)
    assert packed.shape == (4, 256 // (16 * inner_tiles), 32, inner_tiles // 2) and packed.dtype == torch.int32
    row, of_lane_5 = weight[8 + 5 // 4], [2, 10, 18, 26, 3, 11, 19, 27]
    assert packed[1, 0, 5, 0].item() & 0xFFFFFFFF == sum(int(row[place]) << 4 * i for i, place in enumerate(of_lane_5))
    x, scales = torch.randn(3, 256, dtype=torch.bfloat16), torch.rand(256 // group, 32, 2, dtype=torch.bfloat16)
    out = aten._weight_int4pack_mm(x.cuda(), packed, group, scales.cuda())
    there = aten._weight_int4pack_mm_for_cpu(x, aten._convert_weight_to_int4pack_for_cpu(weight, inner_tiles), group, scales)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.cpu(), there, rtol=0.02, atol=0.5)
