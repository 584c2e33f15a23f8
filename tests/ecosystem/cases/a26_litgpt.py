"""LitGPT: a small model is pretrained for some steps and generates with a KV cache."""

# requires: litgpt
import sys

import torch
from litgpt import GPT, Config
from litgpt.generate.base import generate

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = Config(
    n_layer=2,
    n_head=4,
    n_embd=64,
    n_query_groups=2,
    vocab_size=96,
    padded_vocab_size=96,
    block_size=64,
    norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP",
    intermediate_size=128,
    rotary_percentage=1.0,
    bias=False,
)
model = GPT(config).to(device)
tokens = torch.randint(96, (4, 33), generator=torch.Generator().manual_seed(1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses = []
for _ in range(4):
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    model.max_seq_length = 48
    model.set_kv_cache(batch_size=1, device=torch.device(device))
    made = generate(model, tokens[0, :8], 24, temperature=0.0, top_k=1)
torch.save({"losses": losses, "made": made.cpu()}, sys.argv[1])
