"""Classification models of torchvision."""

# requires: torchvision
# tolerance: 2e-3
import sys

import torch
import torchvision

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
for name in (
    "resnet18",
    "mobilenet_v3_small",
    "squeezenet1_1",
    "shufflenet_v2_x0_5",
    "densenet121",
    "efficientnet_b0",
    "regnet_y_400mf",
    "googlenet",
    "mnasnet0_5",
):
    torch.manual_seed(0)
    options = dict(aux_logits=False, init_weights=False) if name == "googlenet" else {}
    model = torchvision.models.get_model(name, num_classes=5, **options).to(device).eval()
    x = torch.randn(2, 3, 64, 64).to(device)
    out = model(x)
    out.square().sum().backward()
    results[name] = {"out": out.detach().cpu(), "grad": next(p.grad for p in model.parameters() if p.grad is not None).cpu().norm().item()}
torch.save(results, sys.argv[1])
