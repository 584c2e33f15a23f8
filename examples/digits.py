"""Train a small convolutional network on scikit-learn's handwritten digits. Plain PyTorch."""

import torch
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"training on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}")

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(labels)
train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
dataset = torch.utils.data.TensorDataset(train_x, train_y)
loader = torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=True, drop_last=True)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 2 * 2, 10),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loss_function = nn.CrossEntropyLoss()

model.train()
for _epoch in track(range(12), description="digits"):
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
print(f"final loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    predicted = model(test_x.to(device)).argmax(dim=1).cpu()
print(f"test accuracy {(predicted == test_y).float().mean().item():.4f}")
