"""diffusers: training of a UNet, an exponential average, the DDPM pipeline."""

# requires: diffusers
# tolerance: 5e-3
import sys

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
options = dict(
    sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8, attention_head_dim=8
)
model = UNet2DModel(**options, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")).to(
    device
)
average = EMAModel(model.parameters(), decay=0.9)
scheduler = DDPMScheduler(num_train_timesteps=20)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(3):
    images, noise, t = torch.randn(2, 3, 8, 8).to(device), torch.randn(2, 3, 8, 8).to(device), torch.randint(20, (2,)).to(device)
    loss = torch.nn.functional.mse_loss(model(scheduler.add_noise(images, noise, t), t).sample, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.step(model.parameters())
    losses.append(loss.item())
average.copy_to(model.parameters())
pipe = DDPMPipeline(model, scheduler)
pipe.set_progress_bar_config(disable=True)
image = pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=3, output_type="np").images
results = {"losses": losses, "image": torch.from_numpy(image)}
torch.save(results, sys.argv[1])
