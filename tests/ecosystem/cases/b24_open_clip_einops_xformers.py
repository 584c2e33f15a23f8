"""open_clip with a small configuration, einops' functions and layers."""

# requires: open_clip, einops
import sys

import open_clip
import torch
from einops import rearrange, reduce, repeat
from einops.layers.torch import Rearrange

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = (
    open_clip.CLIP(
        embed_dim=16,
        vision_cfg=dict(image_size=16, layers=2, width=64, head_width=32, patch_size=8),
        text_cfg=dict(context_length=8, vocab_size=60, width=32, heads=2, layers=2),
    )
    .eval()
    .to(device)
)
image, text = torch.randn(2, 3, 16, 16).to(device), torch.randint(1, 59, (2, 8)).to(device)
a, b, scale = model(image, text)
loss = open_clip.ClipLoss()(a, b, scale)
loss.backward()
results = {"image": a.detach().cpu(), "text": b.detach().cpu(), "loss": loss.item(), "grad": model.text_projection.grad.cpu()}
results["rearrange"] = rearrange(image, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4).cpu()
results["reduce"] = reduce(image, "b c h w -> b c", "mean").cpu()
results["repeat"] = repeat(image[0, 0], "h w -> h (w r)", r=2).cpu()
results["layer"] = Rearrange("b c h w -> b (c h w)")(image).cpu()
torch.save(results, sys.argv[1])
