"""T5 with random weights: beam search, and one training step."""

import sys

import torch
from transformers import T5Config, T5ForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
config = T5Config(
    vocab_size=89,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    dropout_rate=0.0,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
model = T5ForConditionalGeneration(config).to(device)
model.eval()
ids = torch.randint(2, 89, (2, 7)).to(device)
with torch.no_grad():
    beams = model.generate(ids, num_beams=3, max_new_tokens=8, num_return_sequences=2, early_stopping=True)
model.train()
loss = model(input_ids=ids, labels=ids).loss
loss.backward()
gradient = model.shared.weight.grad
torch.save({"beams": beams.cpu(), "loss": loss.detach().cpu(), "gradient": gradient.cpu()}, sys.argv[1])
