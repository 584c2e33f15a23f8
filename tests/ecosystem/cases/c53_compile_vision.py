"""torch.compile of models of timm and torchvision by default, in training: outputs, gradients, statistics of batch normalisation."""

# requires: timm, torchvision
# tolerance: 2e-3
# timeout: 900
import sys
import warnings

import timm
import torch
import torchvision

device = "cuda" if torch.cuda.is_available() else "cpu"
warnings.filterwarnings("error", message="torch.compile executes a graph as it is")
of_timm = "resnet10t mobilenetv3_small_050 efficientnet_lite0 convnext_atto regnetx_002 mixer_s32_224"
of_torchvision = "resnet18 squeezenet1_1 shufflenet_v2_x0_5 efficientnet_b0 convnext_tiny swin_t"
results = {}
for name in f"{of_timm} {of_torchvision}".split():
    torch.manual_seed(0)
    if name in of_timm.split():
        model = timm.create_model(name, num_classes=7, **(dict(img_size=64) if name.startswith("mixer") else {}))
    else:
        model = getattr(torchvision.models, name)(num_classes=7)
    model = model.to(device).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) or type(module).__name__ in ("DropPath", "StochasticDepth"):
            module.eval()
    called = torch.compile(model) if device == "cuda" else model
    for i in range(2):
        model.zero_grad()
        out = called(torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(i)).to(device))
        out.square().mean().backward()
    grads = [p.grad.norm() for p in model.parameters()]
    means = [b.float().mean() for b in model.buffers()]
    results[name] = {
        "out": out.detach().cpu(),
        "grad": torch.stack(grads).norm().item(),
        "buffers": torch.stack(means or [torch.zeros(())]).cpu(),
    }
torch.save(results, sys.argv[1])
