"""timm in training: its scaler, averaged model, losses and optimisers."""

# requires: timm
# tolerance: 5e-3
import sys

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
for name in ("lamb", "lion", "adan", "adopt", "nadamw"):
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=4).to(device)
    average = ModelEmaV3(model, decay=0.9)
    optimizer = create_optimizer_v2(model, opt=name, lr=1e-3, weight_decay=0.01)
    schedule = CosineLRScheduler(optimizer, 4)
    scaler = NativeScaler(device=device)
    x, y = torch.randn(4, 3, 32, 32).to(device), torch.randint(4, (4,)).to(device)
    losses = []
    for step in range(2):
        out = model(x)
        loss = LabelSmoothingCrossEntropy()(out, y) + SoftTargetCrossEntropy()(out, torch.softmax(out.detach(), -1))
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        schedule.step(step)
        losses.append(loss.item())
    results[name] = [losses, len(accuracy(out, y, (1, 2)))]
torch.save(results, sys.argv[1])
