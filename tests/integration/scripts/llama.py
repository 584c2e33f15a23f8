"""A Llama with random weights: made, saved, loaded onto the device by from_pretrained, and asked nine times to generate."""

import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(100000)
config = LlamaConfig(
    vocab_size=257,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, device_map=device)
model.eval()
prompts = torch.randint(3, 257, (9, 6))
outputs = []
for i in range(9):
    prompt = prompts[i : i + 1].to(model.device)
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_length=24, do_sample=False)
    outputs.append(out.cpu())
with torch.no_grad():
    logits = model(prompts.to(model.device)).logits
torch.save({"tokens": outputs, "logits": logits.float().cpu()}, sys.argv[1])
