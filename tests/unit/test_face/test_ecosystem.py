"""Libraries that know CUDA work on the device as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.device import same


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file, load_model, save_file, save_model

    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    save_file({name: tensor.cuda() for name, tensor in tensors.items()}, tmp_path / "x.safetensors")
    for device in ("cuda", "cuda:0", 0):
        for name, tensor in load_file(tmp_path / "x.safetensors", device=device).items():
            same(tensor, tensors[name])
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    save_model(model.cuda(), str(tmp_path / "m.safetensors"))
    again = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).cuda()
    again[1].weight = again[0].weight
    load_model(again, tmp_path / "m.safetensors")
    same(again[0].weight.detach(), model[0].weight.detach().cpu())


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_with_pinned_memory(workers: int) -> None:
    data = TensorDataset(torch.arange(10.0).reshape(10, 1), torch.arange(10))
    loader = DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers, shuffle=True, generator=torch.Generator().manual_seed(0))
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        moved = x.cuda(non_blocking=True)
        same(moved.squeeze(1), y.float())
        seen += y.tolist()
    assert sorted(seen) == list(range(10))


def test_accelerate() -> None:
    from accelerate import Accelerator

    torch.manual_seed(0)
    accelerator = Accelerator()
    assert accelerator.device.type == "cuda"
    model = nn.Linear(4, 2)
    weight = model.weight.detach().clone()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.ones(3, 4, device=accelerator.device)
    accelerator.backward(model(x).sum())
    optimizer.step()
    same(accelerator.unwrap_model(model).weight.detach(), weight - 0.3)


def test_lora_with_peft() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model = get_peft_model(base, LoraConfig(target_modules=["0", "2"], r=2, lora_alpha=4))
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = model(x)
    model.cuda()
    result = model(x.cuda())
    same(result.detach(), expected.detach())
    result.sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert gradients and all(g is not None and g.is_cuda for g in gradients.values())


def test_from_pretrained_and_generate(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    here = LlamaForCausalLM(config).eval()
    here.save_pretrained(tmp_path)
    there = LlamaForCausalLM.from_pretrained(tmp_path, device_map="cuda")
    assert there.device == torch.device("cuda", 0) and there.lm_head.weight.is_cuda
    prompt = torch.tensor([[1, 5, 9]])
    expected = here.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert there.generate(prompt.cuda(), max_new_tokens=6, do_sample=False, pad_token_id=0).tolist() == expected.tolist()
