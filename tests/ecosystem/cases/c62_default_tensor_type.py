"""Legacy interfaces: the default tensor type, typed constructors, Variable, rays of a radiance field; NVTX annotation, a preferred linear algebra library"""

import sys
import warnings

import torch
from torch import nn
from torch.autograd import Variable

warnings.simplefilter("ignore")
on_device = torch.cuda.is_available()
typed = torch.cuda if on_device else torch
torch.set_default_tensor_type(typed.FloatTensor)
if on_device:
    torch.backends.cuda.preferred_linalg_library("magma")
torch.manual_seed(0)
size, focal = 6, 7.0
i, j = torch.meshgrid(torch.linspace(0, size - 1, size), torch.linspace(0, size - 1, size), indexing="xy")
directions = torch.stack([(i - size / 2) / focal, -(j - size / 2) / focal, -torch.ones_like(i)], -1)
pose = torch.Tensor([[1, 0, 0, 0.5], [0, 1, 0, -0.5], [0, 0, 1, 4]])
rays = (directions[..., None, :] * pose[:3, :3]).sum(-1).reshape(-1, 3)
depths = torch.linspace(2.0, 6.0, 8)
points = pose[:3, -1] + rays[:, None] * depths[None, :, None]
encoded = torch.cat([wave(2.0**k * points) for k in range(3) for wave in (torch.sin, torch.cos)], -1)
field = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 4))
with torch.no_grad():
    for k, p in enumerate(field.parameters()):
        p.copy_(torch.linspace(-0.5, 0.5, p.numel()).sin().reshape(p.shape) * (k + 1) / 4)
target = torch.Tensor(rays.shape[0], 3).fill_(0.25)
optimizer = torch.optim.Adam(field.parameters(), 1e-2)
losses = []
for _ in range(4):
    with torch.autograd.profiler.emit_nvtx(enabled=on_device):
        raw = field(encoded)
        gaps = torch.cat([depths[1:] - depths[:-1], torch.Tensor([1e10])])
        alpha = 1 - torch.exp(-raw[..., 3].relu() * gaps)
        light = torch.cumprod(torch.cat([torch.ones(alpha.shape[0], 1), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        image = ((alpha * light)[..., None] * raw[..., :3].sigmoid()).sum(1)
        loss = (image - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    losses.append(loss.item())
v = Variable(typed.FloatTensor([1, 2]), requires_grad=True)
(v * v).sum().backward()
index = typed.LongTensor([1, 0])
made = [
    torch.Tensor([[1, 2]]),
    torch.Tensor(2, 3).zero_(),
    typed.ByteTensor(2).fill_(1),
    v.data.new([4.0]),
    torch.eye(2),
    torch.tensor(3.0),
]
results = {
    "losses": losses,
    "image": image.detach().cpu(),
    "made": [[t.cpu(), t.is_cuda == on_device] for t in made],
    "variable": [v.grad.cpu(), v[index].detach().cpu(), isinstance(v.data, typed.FloatTensor), v.double().type_as(index).cpu()],
    "solved": torch.linalg.solve(torch.eye(3) * 2, torch.ones(3)).cpu(),
}
torch.save(results, sys.argv[1])
