"""An ImageNet-style loop: channels_last, autocast, GradScaler, top-k accuracy."""

# requires: torchvision
# tolerance: 5e-2
import sys

import torch
import torchvision

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=5).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler(device)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1).to(device)
x, y = torch.randn(8, 3, 48, 48), torch.randint(5, (8,))
losses, finite = [], []
for _ in range(2):
    images = x.to(device, memory_format=torch.channels_last, non_blocking=True)
    target = y.to(device, non_blocking=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = model(images)
        loss = criterion(out, target)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    _, top = out.topk(2, 1)
    finite.append(0 <= (top == target[:, None]).any(1).float().mean().item() <= 1)
    losses.append(loss.item())
results = {"first": losses[0], "finite": [v == v for v in losses] + finite}
torch.save(results, sys.argv[1])
