"""Segmentation, optical flow and video models of torchvision."""

# requires: torchvision
# tolerance: 2e-3
import sys

import torch
from torchvision.models import optical_flow, segmentation, video

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
torch.manual_seed(0)
model = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).to(device).eval()
x = torch.rand(1, 3, 64, 64).to(device)
results["lraspp"] = model(x)["out"].detach().cpu()
torch.manual_seed(0)
raft = optical_flow.raft_small(weights=None).to(device).eval()
with torch.no_grad():
    results["raft"] = raft(
        torch.rand(1, 3, 128, 128).to(device) * 2 - 1, torch.rand(1, 3, 128, 128).to(device) * 2 - 1, num_flow_updates=2
    )[-1].cpu()
torch.manual_seed(0)
clip = video.r3d_18(weights=None, num_classes=3).to(device).eval()
with torch.no_grad():
    results["r3d"] = clip(torch.rand(1, 3, 4, 32, 32).to(device)).cpu()
torch.save(results, sys.argv[1])
