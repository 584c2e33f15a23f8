"""Faster R-CNN: a training step and detections."""

# requires: torchvision
# tolerance: 2e-3
import sys

import torch
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1), torch.nn.ReLU())
backbone.out_channels = 8
anchors = AnchorGenerator(((16, 32),), ((1.0,),))
model = (
    FasterRCNN(
        backbone,
        3,
        rpn_anchor_generator=anchors,
        min_size=64,
        max_size=64,
        rpn_batch_size_per_image=100000,
        box_batch_size_per_image=100000,
    )
    .to(device)
    .eval()
)
images = [torch.rand(3, 64, 64).to(device) for _ in range(2)]
with torch.no_grad():
    found = model(images)
results = {"boxes": [f["boxes"].cpu() for f in found], "scores": [f["scores"].cpu() for f in found]}
model.train()
targets = [{"boxes": torch.tensor([[5.0, 5, 30, 30]]).to(device), "labels": torch.tensor([1]).to(device)} for _ in images]
losses = model(images, targets)
sum(losses.values()).backward()
results["losses"] = {k: bool(v.isfinite()) for k, v in losses.items()}
torch.save(results, sys.argv[1])
