"""Encoders of transformers with padded batches: outputs and gradients."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModel

device = "cuda" if torch.cuda.is_available() else "cpu"
small = dict(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
    pad_token_id=0,
)
sizes = {
    "bert": {},
    "roberta": {},
    "electra": dict(embedding_size=16),
    "albert": dict(embedding_size=16),
    "distilbert": dict(dim=32, hidden_dim=64, n_layers=2, n_heads=2),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    "mpnet": {},
    "modernbert": dict(local_attention=4, global_attn_every_n_layers=2),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    options = {k: v for k, v in small.items() if name != "distilbert" or k in ("vocab_size", "max_position_embeddings", "pad_token_id")}
    model = AutoModel.from_config(AutoConfig.for_model(name, **options, **size)).eval().to(device)
    ids = torch.arange(3, 19).view(2, 8).to(device)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    out = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    out.square().sum().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"out": out.detach().cpu(), "norm": norm}
torch.save(results, sys.argv[1])
