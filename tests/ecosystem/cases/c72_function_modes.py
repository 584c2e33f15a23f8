"""Tied weights, optimisers made early and buffers, moved to the device under torch.device as a context and modes of __torch_function__"""

import sys

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

device = "cuda" if torch.cuda.is_available() else "cpu"


class Counting(TorchFunctionMode):
    """Counts the functions of torch that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embedding(ids))[0] * self.scale)


results = {}
for name, mode in {"context": torch.device("cpu"), "counting": Counting()}.items():
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids = torch.arange(10).view(2, 5)
    with mode:
        model.to(device)
        ids = ids.to(device)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
    results[name] = {
        "tied": model.head.weight is model.embedding.weight,
        "count": len(list(model.parameters())),
        "state": {key: value.cpu() for key, value in model.state_dict().items()},
    }
    model.cpu()
    results[name]["back"] = model.head.weight is model.embedding.weight
torch.set_default_device(device)
with torch.device("cpu"):
    model = Language()
model.to(device)
results["default device"] = [model.head.weight is model.embedding.weight, model.head.weight.device.type == device]
torch.save(results, sys.argv[1])
