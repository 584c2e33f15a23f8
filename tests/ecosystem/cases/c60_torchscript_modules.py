"""TorchScript modules: loaded and moved, trained, moved back, frozen, saved on the device and loaded elsewhere"""

import copy
import io
import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
image = torch.randn(2, 3, 8, 8)
file = io.BytesIO()
torch.jit.save(torch.jit.trace(net.eval(), image), file)


def load(**options):
    file.seek(0)
    return torch.jit.load(file, **options)


results = {}
for name, model in {"to": load().to(device), "map": load(map_location=device), "twice": load().to(device).cpu().to(device)}.items():
    with torch.no_grad():
        results[name] = [model(image.to(device)).cpu(), [p.device.type == device for p in model.parameters()]]
frozen = torch.jit.optimize_for_inference(torch.jit.freeze(load().to(device).eval()))
results["frozen"] = [frozen(image.to(device)).detach().cpu() for _ in range(3)]
results["home"] = load().to(device).cpu()(image).detach()


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(7, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight  # shared

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[0])


reader = torch.jit.script(Reader()).to(device)
tokens = torch.arange(14).remainder(7).view(2, 7).to(device)
nn.functional.cross_entropy(reader(tokens).flatten(0, 1), tokens.flatten()).backward()
results["reader"] = [reader(tokens).detach().cpu(), len(list(reader.parameters())), reader.embedding.weight.grad.cpu()]

scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(scripted.parameters(), 0.05)  # made before the move
scripted.to(device)
x, y = torch.randn(16, 4).to(device), torch.randn(16, 1).to(device)
results["losses"] = []
for _ in range(5):
    optimizer.zero_grad()
    loss = (scripted(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    results["losses"].append(loss.item())
results["state"] = {name: value.cpu().clone() for name, value in scripted.state_dict().items()}
results["copy"] = copy.deepcopy(scripted).eval()(x).detach().cpu()
scripted.load_state_dict({name: value * 0.5 for name, value in results["state"].items() if value.is_floating_point()}, strict=False)
results["double"] = scripted.eval().double()(x.double()).detach().float().cpu()

saved = io.BytesIO()
torch.jit.save(scripted.float(), saved)
saved.seek(0)
results["elsewhere"] = torch.jit.load(saved, map_location="cpu")(x.cpu()).detach()
torch.save(results, sys.argv[1])
