"""Models of timm: outputs and gradients."""

# requires: timm
# tolerance: 2e-3
import sys

import timm
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
names = "resnet10t mobilenetv3_small_050 efficientnet_lite0 convnext_atto vit_tiny_patch16_224 swin_tiny_patch4_window7_224 deit_tiny_patch16_224 mixer_s32_224 regnetx_002 edgenext_xx_small"
results = {}
for name in names.split():
    torch.manual_seed(0)
    options = dict(img_size=64) if name.startswith(("vit", "deit", "mixer")) else dict(img_size=56) if name.startswith("swin") else {}
    model = timm.create_model(name, num_classes=7, **options).to(device).eval()
    x = torch.randn(2, 3, options.get("img_size", 64), options.get("img_size", 64)).to(device).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    results[name] = {"out": out.detach().cpu(), "grad": x.grad.norm().item()}
torch.save(results, sys.argv[1])
