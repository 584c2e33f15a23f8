"""A Stable Diffusion pipeline with three schedulers, slicing, CPU offload."""

# requires: diffusers, transformers
# tolerance: 5e-3
import sys

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8,
    in_channels=4,
    out_channels=4,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    cross_attention_dim=32,
    attention_head_dim=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)
vae = AutoencoderKL(
    block_out_channels=(16, 32),
    norm_num_groups=8,
    latent_channels=4,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
text = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16
    )
)
kinds = {"ddim": DDIMScheduler, "euler": EulerDiscreteScheduler, "dpm": DPMSolverMultistepScheduler}
pipe = StableDiffusionPipeline(vae, text, None, unet, DDIMScheduler(), None, None, requires_safety_checker=False).to(device)
pipe.set_progress_bar_config(disable=True)
embeds, negative, latents = torch.randn(1, 16, 32), torch.randn(1, 16, 32), torch.randn(1, 4, 8, 8)


def draw():
    given = dict(prompt_embeds=embeds.to(device), negative_prompt_embeds=negative.to(device), latents=latents.clone().to(device))
    return torch.from_numpy(pipe(**given, num_inference_steps=3, output_type="np").images)


results = {}
for name, kind in kinds.items():
    pipe.scheduler = kind.from_config(pipe.scheduler.config)
    results[name] = draw()
pipe.enable_attention_slicing()
pipe.vae.enable_slicing()
results["sliced"] = draw()
if device == "cuda":
    pipe.enable_model_cpu_offload()
results["offload"] = draw()
torch.save(results, sys.argv[1])
