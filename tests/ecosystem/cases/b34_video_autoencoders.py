"""Video models of diffusers: autoencoders of Wan, CogVideoX and LTX, transformers of Wan, LTX and Mochi, a ControlNet, with gradients"""

# requires: diffusers, transformers
import sys

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLWan,
    ControlNetModel,
    LTXVideoTransformer3DModel,
    MochiTransformer3DModel,
    UNet2DConditionModel,
    WanTransformer3DModel,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
heads = dict(num_attention_heads=2, in_channels=4, out_channels=4, num_layers=1, qk_norm="rms_norm_across_heads")
torch.manual_seed(1)
words, five = torch.randn(1, 8, 16), torch.tensor([5])
models = {
    "wan_vae": (
        lambda: AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]),
        dict(sample=torch.randn(1, 3, 5, 16, 16)),
    ),
    "cogvideox_vae": (
        lambda: AutoencoderKLCogVideoX(
            down_block_types=("CogVideoXDownBlock3D",) * 4,
            up_block_types=("CogVideoXUpBlock3D",) * 4,
            block_out_channels=(8, 8, 8, 8),
            latent_channels=4,
            layers_per_block=1,
            norm_num_groups=2,
            temporal_compression_ratio=4,
        ),
        dict(sample=torch.randn(1, 3, 5, 16, 16)),
    ),
    "wan": (
        lambda: WanTransformer3DModel(
            **heads, attention_head_dim=12, text_dim=16, freq_dim=64, ffn_dim=32, cross_attn_norm=True, rope_max_seq_len=32
        ),
        dict(hidden_states=torch.randn(1, 4, 2, 8, 8), timestep=five, encoder_hidden_states=words),
    ),
    "ltx": (
        lambda: LTXVideoTransformer3DModel(**heads, attention_head_dim=8, cross_attention_dim=16, caption_channels=16),
        dict(
            hidden_states=torch.randn(1, 32, 4),
            encoder_hidden_states=words,
            timestep=five.float(),
            encoder_attention_mask=torch.ones(1, 8).bool(),
            num_frames=2,
            height=4,
            width=4,
        ),
    ),
    "mochi": (
        lambda: MochiTransformer3DModel(
            patch_size=2,
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=2,
            pooled_projection_dim=16,
            in_channels=4,
            text_embed_dim=16,
            time_embed_dim=4,
            max_sequence_length=8,
        ),
        dict(
            hidden_states=torch.randn(1, 4, 2, 8, 8),
            encoder_hidden_states=words,
            timestep=five,
            encoder_attention_mask=torch.ones(1, 8).bool(),
        ),
    ),
}
results = {}


def done(name: str, model: torch.nn.Module, out: torch.Tensor) -> None:
    out.square().mean().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"out": out.detach().cpu(), "norm": norm}


for name, (make, inputs) in models.items():
    torch.manual_seed(0)
    model = make().eval().to(device)
    out = model(**{key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()})
    done(name, model, out.sample)
torch.manual_seed(0)
unet = UNet2DConditionModel(
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=2,
)
control = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 8)).to(device)
unet.to(device)
x, hint, at, text = (v.to(device) for v in (torch.randn(1, 4, 8, 8), torch.rand(1, 3, 16, 16), five, words))
down, middle = control(x, at, text, hint, return_dict=False)
done("control", control, unet(x, at, text, down_block_additional_residuals=down, mid_block_additional_residual=middle).sample)
torch.save(results, sys.argv[1])
