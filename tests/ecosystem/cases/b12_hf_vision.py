"""Vision models of transformers: classification and segmentation, gradients."""

# requires: transformers
import sys

import torch
from transformers import AutoConfig, AutoModel

device = "cuda" if torch.cuda.is_available() else "cpu"
vit = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8)
sizes = {
    "vit": vit,
    "dinov2": vit,
    "deit": vit,
    "beit": vit | dict(use_relative_position_bias=True),
    "swin": dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
    "convnext": dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "segformer": dict(
        num_encoder_blocks=2,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        drop_path_rate=0.0,
    ),
    "resnet": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "mobilenet_v2": dict(depth_multiplier=0.35, image_size=32),
}
results = {}
for name, size in sizes.items():
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(name, **size)).eval().to(device)
    pixels = torch.randn(2, 3, 32, 32).to(device).requires_grad_()
    out = model(pixel_values=pixels).last_hidden_state
    out.square().sum().backward()
    results[name] = {"out": out.detach().cpu(), "grad": pixels.grad.norm().item()}
torch.save(results, sys.argv[1])
