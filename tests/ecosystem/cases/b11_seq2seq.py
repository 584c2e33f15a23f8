"""Encoder-decoder models: loss, gradients, greedy and beam generation."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

device = "cuda" if torch.cuda.is_available() else "cpu"
bart = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=40,
)
sizes = {
    "t5": dict(d_model=32, d_ff=64, d_kv=16, num_layers=2, num_heads=2, decoder_start_token_id=0),
    "mt5": dict(d_model=32, d_ff=64, d_kv=16, num_layers=2, num_heads=2, decoder_start_token_id=0, feed_forward_proj="gated-gelu"),
    "bart": bart | dict(decoder_start_token_id=2, forced_eos_token_id=None),
    "marian": bart | dict(decoder_start_token_id=0, forced_eos_token_id=None),
    "pegasus": bart | dict(decoder_start_token_id=0, forced_eos_token_id=None),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=60, pad_token_id=0, eos_token_id=1, bos_token_id=2, **size)
    model = AutoModelForSeq2SeqLM.from_config(config).eval().to(device)
    ids = torch.arange(3, 15).view(2, 6).to(device)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"loss": loss.item(), "norm": norm}
    for beams in (1, 2):
        results[name][beams] = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=5, num_beams=beams, do_sample=False).cpu()
torch.save(results, sys.argv[1])
