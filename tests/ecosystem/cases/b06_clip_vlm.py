"""CLIP and LLaVA with small random configurations."""

# requires: transformers
import sys

import torch
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
text = dict(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=16,
    eos_token_id=2,
    bos_token_id=1,
    pad_token_id=0,
)
vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8)
clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval().to(device)
ids = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]).to(device)
pixels = torch.randn(2, 3, 16, 16).to(device)
out = clip(input_ids=ids, pixel_values=pixels, attention_mask=(ids != 0).long(), return_loss=True)
out.loss.backward()
results = {"clip": out.logits_per_image.detach().cpu(), "loss": out.loss.item(), "grad": clip.visual_projection.weight.grad.cpu()}
language = LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0)
llava = (
    LlavaForConditionalGeneration(
        LlavaConfig(vision_config=CLIPVisionConfig(**vision), text_config=language, image_token_id=59, vision_feature_layer=-1)
    )
    .eval()
    .to(device)
)
prompt = torch.tensor([[1, 59, 59, 59, 59, 7, 8]]).to(device)
with torch.no_grad():
    results["llava"] = llava(input_ids=prompt, pixel_values=pixels[:1]).logits.cpu()
results["tokens"] = llava.generate(input_ids=prompt, pixel_values=pixels[:1], max_new_tokens=4, do_sample=False).cpu()
torch.save(results, sys.argv[1])
