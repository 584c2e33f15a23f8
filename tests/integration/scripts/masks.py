"""Padded text through models of Hugging Face: BERT in training, with and without dropout, and multi-query attention (Falcon)."""

import sys

import torch
from transformers import BertConfig, BertModel, FalconConfig, FalconForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
tokens = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(1)).to(device)
mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0]], device=device)


def bert(dropout):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=16,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return BertModel(config).to(device).train()


model = bert(0.0)
out = model(tokens, attention_mask=mask).last_hidden_state
out[mask.bool()].square().mean().backward()
results["bert"] = [out.detach().cpu(), *(p.grad.cpu() for p in model.parameters() if p.grad is not None)]

model = bert(0.1)
embedded = torch.randn(2, 7, 32, device=device, requires_grad=True)
out = model(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
out[mask.bool()].square().mean().backward()
results["padding_has_influence"] = bool((embedded.grad[~mask.bool()] != 0).any())

torch.manual_seed(0)
config = FalconConfig(vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, multi_query=True, alibi=False)
model = FalconForCausalLM(config).to(device).eval()
with torch.no_grad():
    results["falcon"] = model(tokens, attention_mask=mask.flip(1)).logits.cpu()
torch.save(results, sys.argv[1])
