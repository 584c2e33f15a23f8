"""Vision operators: grid_sample, interpolation, folds, pooling, shuffles, channels_last."""

import sys

import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(2, 4, 8, 8).to(device).requires_grad_()
theta = torch.tensor([[[0.9, -0.3, 0.1], [0.3, 0.9, -0.2]]]).repeat(2, 1, 1).to(device)
grid = F.affine_grid(theta, (2, 4, 8, 8), align_corners=False)
made = {f"grid {m} {p}": F.grid_sample(x, grid, m, p, False) for m in ("bilinear", "nearest") for p in ("zeros", "border", "reflection")}
made |= {m: F.interpolate(x, scale_factor=1.7, mode=m) for m in ("nearest", "bilinear", "bicubic")}
made |= {f"{m} antialias": F.interpolate(x, size=5, mode=m, antialias=True) for m in ("bilinear", "bicubic")}
made |= {
    "unfold": F.unfold(x, 3, padding=1),
    "fold": F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2),
    "shuffle": F.pixel_shuffle(x, 2),
}
made |= {
    "max": F.max_pool2d(x, 3, 2, 1),
    "avg": F.avg_pool2d(x, 3, ceil_mode=True),
    "lp": F.lp_pool2d(x, 2, 2),
    "adaptive": F.adaptive_max_pool2d(x, 3),
}
made |= {
    "pad": F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "circular": F.pad(x, (1, 1, 2, 0), mode="circular"),
    "norm": F.local_response_norm(x, 3),
}
results = {name: y.detach().cpu() for name, y in made.items()}
sum(y.square().mean() for y in made.values()).backward()
results["grad"] = x.grad.cpu()
conv = torch.nn.Conv2d(4, 6, 3).to(device, memory_format=torch.channels_last)
with torch.no_grad():
    conv.weight.copy_(torch.sin(torch.arange(216.0)).view(6, 4, 3, 3))
    conv.bias.zero_()
out = conv(x.detach().contiguous(memory_format=torch.channels_last))
results["conv"] = out.detach().cpu().contiguous()
torch.save(results, sys.argv[1])
