"""State-space and recurrent language models: logits, gradients, generation."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = {
    "mamba": dict(hidden_size=16, num_hidden_layers=2, state_size=4),
    "mamba2": dict(hidden_size=16, num_hidden_layers=2, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    "rwkv": dict(hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, context_length=32),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=40, pad_token_id=0, bos_token_id=1, eos_token_id=2, **size)
    model = AutoModelForCausalLM.from_config(config).to(device)
    ids = torch.arange(3, 15).view(2, 6).to(device)
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"loss": out.loss.item(), "logits": out.logits.detach().cpu(), "norm": norm}
    results[name]["tokens"] = model.eval().generate(ids, max_new_tokens=4, do_sample=False).cpu()
torch.save(results, sys.argv[1])
