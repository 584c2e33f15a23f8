"""generate() with a static cache and a compiled forward."""

# requires: transformers
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
ends = dict(vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = (
    LlamaForCausalLM(
        LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, initializer_range=0.5, **ends)
    )
    .eval()
    .to(device)
)
if device == "cuda":
    model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
ids = torch.tensor([[5, 6, 7, 8]]).to(device)
results = {"static": model.generate(ids, max_new_tokens=10, do_sample=False, cache_implementation="static").cpu()}
torch.save(results, sys.argv[1])
