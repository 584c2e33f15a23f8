"""nnsight: hidden states of a traced model are read and changed."""

# requires: nnsight, transformers
import sys

import torch
from nnsight import NNsight
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = (
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    .to(device)
    .eval()
)
wrapped = NNsight(model)
tokens = torch.arange(10, device=device)[None]
with wrapped.trace(tokens):
    hidden = wrapped.transformer.h[0].output[0].save()
    wrapped.transformer.h[1].mlp.output[:] = 0
    logits = wrapped.lm_head.output.save()
plain = model(tokens).logits
torch.save({"hidden": hidden.detach().cpu(), "logits": logits.detach().cpu(), "plain": plain.detach().cpu()}, sys.argv[1])
