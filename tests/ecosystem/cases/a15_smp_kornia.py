"""Segmentation models in training; kornia's geometric transforms, filters and enhancements."""

# requires: segmentation_models_pytorch, kornia
import sys

import kornia
import segmentation_models_pytorch as smp
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
results = {}
torch.manual_seed(0)
x = torch.rand(2, 3, 64, 64)
target = (torch.rand(2, 1, 64, 64) > 0.5).float().to(device)
for arch in ("Unet", "Linknet", "FPN"):
    torch.manual_seed(1)
    model = smp.create_model(arch, encoder_name="resnet18", encoder_weights=None)
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout2d):
            m.p = 0.0
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(2):
        out = model(x.to(device))
        loss = smp.losses.DiceLoss("binary")(out, target) + smp.losses.FocalLoss("binary")(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.setdefault(arch, []).append(loss.item())
image = x.to(device)
angle = torch.tensor([30.0, -45.0], device=device)
matrix = torch.eye(3, device=device).repeat(2, 1, 1) + 1e-3
results["rotate"] = kornia.geometry.rotate(image, angle).cpu()
results["affine"] = kornia.geometry.warp_affine(image, matrix[:, :2], (40, 48)).cpu()
results["perspective"] = kornia.geometry.warp_perspective(image, matrix, (64, 64)).cpu()
results["scale"] = kornia.geometry.scale(image, torch.tensor([[1.5, 0.7], [0.5, 1.0]], device=device)).cpu()
results["blur"] = kornia.filters.gaussian_blur2d(image, (5, 5), (1.5, 1.5)).cpu()
results["sobel"] = kornia.filters.sobel(image).cpu()
results["median"] = kornia.filters.median_blur(image, (3, 3)).cpu()
results["hsv"] = kornia.color.rgb_to_hsv(image).cpu()
results["lab"] = kornia.color.rgb_to_lab(image).cpu()
results["equalize"] = kornia.enhance.equalize(image).cpu()
results["ssim"] = kornia.metrics.ssim(image, image.flip(0), 5).cpu()
torch.save(results, sys.argv[1])
