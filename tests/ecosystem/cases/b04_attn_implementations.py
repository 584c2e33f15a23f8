"""eager, sdpa and flex attention of transformers give the same logits."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
ids = torch.arange(3, 15).view(2, 6).to(device)
mask = torch.ones_like(ids)
mask[1, :2] = 0
results = {}
for name in ("eager", "sdpa"):
    config = AutoConfig.for_model(
        "llama", vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=name).eval().to(device)
    with torch.no_grad():
        results[name] = model(input_ids=ids, attention_mask=mask).logits[mask.bool()].cpu()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=name, dtype=torch.bfloat16).eval().to(device)
    with torch.no_grad():
        results[name + " bf16"] = model(input_ids=ids, attention_mask=mask).logits[mask.bool()].cpu()
torch.save(results, sys.argv[1])
