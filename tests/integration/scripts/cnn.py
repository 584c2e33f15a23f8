"""A convolutional network with batch normalisation: training, then evaluation with the running statistics."""

import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2, bias=False),
    nn.BatchNorm2d(16),
    nn.SiLU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.0),
    nn.Linear(16 * 2 * 2, 5),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(16, 3, 16, 16).to(device), torch.randint(0, 5, (16,)).to(device)
model.train()
losses = []
for _ in range(5):
    optimizer.zero_grad(set_to_none=False)
    loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    logits = model(x)
torch.save(
    {"losses": torch.tensor(losses), "logits": logits.cpu(), "state": {k: v.cpu() for k, v in model.state_dict().items()}}, sys.argv[1]
)
