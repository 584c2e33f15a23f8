"""accelerate: device maps, layers on the CPU, offloading, half precision."""

# requires: accelerate, transformers
import sys

import torch
from accelerate import cpu_offload, dispatch_model, infer_auto_device_map
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
ids = torch.arange(8).view(1, 8)
where = 0 if device == "cuda" else "cpu"


def made():
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


made().save_pretrained("saved")
results = {}
with torch.no_grad():
    auto = LlamaForCausalLM.from_pretrained("saved", device_map="auto")
    results["auto"] = [auto(ids.to(auto.device)).logits.cpu(), auto.device.type == device]
    mixed = dispatch_model(
        made(),
        {
            "model.embed_tokens": where,
            "model.layers.0": where,
            "model.layers.1": "cpu",
            "model.norm": where,
            "model.rotary_emb": where,
            "lm_head": where,
        },
        main_device=where,
    )
    results["mixed"] = mixed(ids).logits.cpu()
    results["offload"] = cpu_offload(made(), execution_device=torch.device(where) if device == "cpu" else 0)(ids).logits.cpu()
results["map"] = len(infer_auto_device_map(made(), {"cpu": "1GB"} if device == "cpu" else {0: "1GB", "cpu": "1GB"}))
torch.save(results, sys.argv[1])
