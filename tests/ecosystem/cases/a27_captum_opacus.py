"""captum's attributions (integrated gradients, DeepLIFT, Grad-CAM, occlusion, conductance), opacus' gradients of each sample"""

# requires: captum, opacus
import sys

import torch
from captum.attr import (
    DeepLift,
    DeepLiftShap,
    FeatureAblation,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    LayerConductance,
    LayerGradCam,
    Occlusion,
    Saliency,
)
from opacus import GradSampleModule, PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)).to(device).eval()
x = torch.randn(2, 1, 8, 8).to(device)
regions = (torch.arange(64) // 16).view(1, 1, 8, 8).to(device)
found = {
    "integrated": IntegratedGradients(model).attribute(x, target=1, n_steps=8),
    "deeplift": DeepLift(model).attribute(x, target=2),
    "deeplift_shap": DeepLiftShap(model).attribute(x, baselines=torch.zeros(3, 1, 8, 8).to(device), target=1),
    "grad_cam": LayerGradCam(model, model[0]).attribute(x, target=1),
    "occlusion": Occlusion(model).attribute(x, target=1, sliding_window_shapes=(1, 3, 3), strides=(1, 2, 2)),
    "ablation": FeatureAblation(model).attribute(x, target=1, feature_mask=regions),
    "conductance": LayerConductance(model, model[0]).attribute(x, target=1, n_steps=5),
    **{kind.__name__: kind(model).attribute(x.clone().requires_grad_(), target=0) for kind in (Saliency, GuidedBackprop, InputXGradient)},
}
results = {name: value.detach().cpu() for name, value in found.items()}

modules = {
    "conv": (nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(32, 3)), torch.randn(5, 2, 8)),
    "lstm": (DPLSTM(4, 5, batch_first=True), torch.randn(2, 3, 4)),
    "embedding": (nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4)), torch.randint(0, 7, (3, 5))),
}
for name, (module, inputs) in modules.items():
    sampled = GradSampleModule(module).to(device)
    out = sampled(inputs.to(device))
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    results[name] = [p.grad_sample.cpu() for p in sampled.parameters()]

private = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
loader = DataLoader(TensorDataset(torch.randn(16, 6), torch.randint(0, 3, (16,))), batch_size=4)
engine = PrivacyEngine(accountant="rdp")
private, optimizer, loader = engine.make_private(
    module=private,
    optimizer=torch.optim.SGD(private.parameters(), 0.1),
    data_loader=loader,
    noise_multiplier=1.0,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
for inputs, labels in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(private(inputs.to(device)), labels.to(device)).backward()
    optimizer.step()
results["epsilon"] = engine.get_epsilon(1e-3)  # the noise itself is the device's own
results["finite"] = all(bool(p.isfinite().all()) for p in private.parameters())
torch.save(results, sys.argv[1])
