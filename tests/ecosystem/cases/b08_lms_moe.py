"""Mixture-of-experts language models: logits, loss, gradients."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
small = dict(
    vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0
)
sizes = {
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": dict(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=32, decoder_sparse_step=1
    ),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **small, **size)).to(device)
    ids = torch.arange(3, 19).view(2, 8).to(device)
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"loss": out.loss.item(), "logits": out.logits.detach().cpu(), "norm": norm}
torch.save(results, sys.argv[1])
