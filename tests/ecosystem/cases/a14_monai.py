"""MONAI: a 3-D UNet, Dice losses, sliding-window inference."""

# requires: monai
# tolerance: 2e-3
import sys

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss, DiceLoss
from monai.networks.nets import UNet

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(1, 1, 16, 16, 16).to(device)
y = (torch.rand(1, 1, 16, 16, 16) > 0.5).long().to(device)
losses = []
for _ in range(2):
    loss = DiceCELoss(to_onehot_y=True, softmax=True)(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    results = {"losses": losses, "window": sliding_window_inference(x, (8, 8, 8), 2, model, overlap=0.25, mode="gaussian").cpu()}
    results["dice"] = DiceLoss(to_onehot_y=True, softmax=True)(results["window"].to(device), y).item()
torch.save(results, sys.argv[1])
