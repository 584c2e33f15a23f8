"""torchvision's own operators and transforms."""

# requires: torchvision
import sys

import torch
from torchvision import ops
from torchvision.transforms import v2

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
corners = torch.rand(12, 2) * 20
boxes = torch.cat([corners, corners + 4 + torch.rand(12, 2) * 8], 1).to(device)
scores = torch.rand(12).to(device)
x = torch.randn(1, 4, 16, 16).to(device).requires_grad_()
rois = [boxes[:5] / 2]
results = {
    "iou": ops.box_iou(boxes, boxes).cpu(),
    "giou": ops.generalized_box_iou(boxes, boxes).cpu(),
    "focal": ops.sigmoid_focal_loss(boxes, (boxes > 10).float(), reduction="mean").cpu(),
    "convert": ops.box_convert(boxes, "xyxy", "cxcywh").cpu(),
    "clip": ops.clip_boxes_to_image(boxes, (16, 16)).cpu(),
    "resize": v2.Resize((9, 7), antialias=True)(x.detach()).cpu(),
    "normalize": v2.Normalize([0.1] * 4, [0.5] * 4)(x.detach()).cpu(),
    "affine": v2.functional.affine(x.detach(), 30.0, [1, 2], 1.2, [5.0, 0.0]).cpu(),
    "nms": ops.nms(boxes, scores, 0.3).cpu(),
    "batched_nms": ops.batched_nms(boxes, scores, torch.arange(12, device=device) % 2, 0.3).cpu(),
    "roi_pool": ops.roi_pool(x, rois, 3).detach().cpu(),
    "ps_roi_align": ops.ps_roi_align(x, rois, 2).detach().cpu(),
    "deform": ops.deform_conv2d(x, torch.full((1, 18, 14, 14), 0.3, device=device), torch.ones(2, 4, 3, 3, device=device)).detach().cpu(),
}
aligned = ops.roi_align(x, rois, 3, sampling_ratio=2)
aligned.square().sum().backward()
results |= {"roi_align": aligned.detach().cpu(), "grad": x.grad.cpu()}
torch.save(results, sys.argv[1])
