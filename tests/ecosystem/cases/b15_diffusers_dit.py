"""Diffusion transformers: DiT, SD3 and Flux blocks with small random configurations."""

# requires: diffusers
import sys

import torch
from diffusers import DiTTransformer2DModel, FluxTransformer2DModel, SD3Transformer2DModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
dit = (
    DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
    )
    .eval()
    .to(device)
)
x = torch.randn(2, 4, 8, 8).to(device)
t = torch.tensor([5, 50]).to(device)
results = {"dit": dit(x, timestep=t, class_labels=torch.tensor([1, 2]).to(device)).sample.detach().cpu()}
sd3 = (
    SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        out_channels=4,
    )
    .eval()
    .to(device)
)
out = sd3(x, encoder_hidden_states=torch.randn(2, 5, 16).to(device), pooled_projections=torch.randn(2, 16).to(device), timestep=t).sample
out.square().sum().backward()
results |= {"sd3": out.detach().cpu(), "grad": sd3.proj_out.weight.grad.cpu()}
flux = (
    FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    .eval()
    .to(device)
)
given = dict(
    hidden_states=torch.randn(1, 9, 4).to(device),
    encoder_hidden_states=torch.randn(1, 5, 16).to(device),
    pooled_projections=torch.randn(1, 16).to(device),
)
ids = dict(img_ids=torch.randint(3, (9, 3)).float().to(device), txt_ids=torch.zeros(5, 3).to(device))
results["flux"] = flux(**given, **ids, timestep=torch.tensor([0.5]).to(device)).sample.detach().cpu()
torch.save(results, sys.argv[1])
