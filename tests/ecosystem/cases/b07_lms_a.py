"""Sixteen causal language models of transformers: logits with padding, loss, greedy generation."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
small = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99, intermediate_size=64, max_position_embeddings=64)
ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
sizes = {
    "llama": small | dict(num_key_value_heads=2),
    "mistral": small | dict(num_key_value_heads=2, sliding_window=4),
    "qwen2": small | dict(num_key_value_heads=2),
    "qwen3": small | dict(num_key_value_heads=2, head_dim=8),
    "gemma": small | dict(num_key_value_heads=1, head_dim=8),
    "gemma2": small | dict(num_key_value_heads=2, head_dim=8, sliding_window=4),
    "phi": small,
    "phi3": small | dict(num_key_value_heads=2),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64),
    "gpt_neo": dict(hidden_size=32, num_layers=2, num_heads=4, vocab_size=99, attention_types=[[["global", "local"], 1]], window_size=4),
    "gpt_neox": small,
    "gptj": dict(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64, rotary_dim=4),
    "opt": small | dict(ffn_dim=64, word_embed_proj_dim=32),
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=99),
    "falcon": dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99, multi_query=True, new_decoder_architecture=False
    ),
    "stablelm": small | dict(num_key_value_heads=2),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **size, **ends)).eval().to(device)
    ids = torch.randint(3, 99, (2, 12)).to(device)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[mask.bool()].cpu()
    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    tokens = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=4, do_sample=False).cpu()
    results[name] = {"logits": logits, "loss": loss.item(), "norm": norm, "tokens": tokens}
torch.save(results, sys.argv[1])
