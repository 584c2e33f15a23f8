"""Detection and promptable segmentation of transformers: DETR, YOLOS, MaskFormer, OWL-ViT, Grounding DINO, SAM, with gradients"""

# requires: transformers, scipy
import sys

import torch
from transformers import (
    BertConfig,
    DetrConfig,
    DetrForObjectDetection,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    MaskFormerConfig,
    MaskFormerForInstanceSegmentation,
    OwlViTConfig,
    OwlViTForObjectDetection,
    ResNetConfig,
    SamConfig,
    SamMaskDecoderConfig,
    SamModel,
    SamPromptEncoderConfig,
    SamVisionConfig,
    SwinConfig,
    YolosConfig,
    YolosForObjectDetection,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
widths = dict(embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic")
small = dict(d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_attention_heads=4, decoder_attention_heads=4, num_queries=6)
encoder = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
text = dict(vocab_size=99, max_position_embeddings=8, eos_token_id=98)


def swin(*stages: str) -> SwinConfig:
    return SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[1] * 4, num_heads=[2] * 4, window_size=4, out_features=list(stages)
    )


detr = small | dict(encoder_layers=1, decoder_layers=1, num_labels=4, use_timm_backbone=False, backbone=None)
targets = [{"class_labels": torch.tensor([1, 2]), "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.3, 0.3]])}]
words = {"input_ids": torch.tensor([[2, 5, 7, 22, 9, 22, 3]]), "attention_mask": torch.ones(1, 7, dtype=torch.long)}
models = {
    "detr": (
        lambda: DetrForObjectDetection(DetrConfig(backbone_config=ResNetConfig(**widths, out_features=["stage4"]), **detr)),
        {"labels": targets},
    ),
    "yolos": (
        lambda: YolosForObjectDetection(YolosConfig(**encoder, image_size=[64, 64], patch_size=8, num_detection_tokens=4, num_labels=4)),
        {"labels": targets},
    ),
    "maskformer": (
        lambda: MaskFormerForInstanceSegmentation(
            MaskFormerConfig(
                backbone_config=swin("stage1", "stage2", "stage3", "stage4"),
                fpn_feature_size=32,
                mask_feature_size=32,
                decoder_config=DetrConfig(backbone_config=None, **detr),
            )
        ),
        {
            "mask_labels": [torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0)).gt(0.5).float()],
            "class_labels": [torch.tensor([1, 2])],
        },
    ),
    "owlvit": (
        lambda: OwlViTForObjectDetection(
            OwlViTConfig(text_config=encoder | text, vision_config=encoder | dict(image_size=64, patch_size=16), projection_dim=32)
        ),
        words,
    ),
    "grounding_dino": (
        lambda: GroundingDinoForObjectDetection(
            GroundingDinoConfig(
                backbone_config=swin("stage2", "stage3", "stage4"),
                text_config=BertConfig(**encoder, vocab_size=99),
                encoder_layers=1,
                decoder_layers=2,
                num_feature_levels=3,
                **small | dict(num_queries=84),
            )
        ),
        words,
    ),
    "sam": (
        lambda: SamModel(
            SamConfig(
                vision_config=SamVisionConfig(
                    hidden_size=32,
                    output_channels=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    image_size=64,
                    patch_size=8,
                    window_size=4,
                    global_attn_indexes=[1],
                    num_pos_feats=16,
                    mlp_dim=32,
                ),
                prompt_encoder_config=SamPromptEncoderConfig(hidden_size=32, image_size=64, patch_size=8, mask_input_channels=4),
                mask_decoder_config=SamMaskDecoderConfig(hidden_size=32, mlp_dim=32, num_attention_heads=4, iou_head_hidden_dim=32),
            )
        ),
        {"input_points": torch.tensor([[[[20.0, 30.0]]]]), "input_labels": torch.tensor([[[1]]])},
    ),
}


def moved(value: object) -> object:
    if isinstance(value, list):
        return [moved(item) for item in value]
    if isinstance(value, dict):
        return {name: moved(item) for name, item in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value


results = {}
for name, (make, inputs) in models.items():
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():  # heads begin at 0 in some
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.to(device)
    out = model(pixel_values=torch.randn(1, 3, 64, 64).to(device), **moved(inputs))
    found = {key: value for key, value in out.items() if isinstance(value, torch.Tensor) and value.requires_grad}
    sum(torch.nan_to_num(value.float(), posinf=0, neginf=0).square().mean() for value in found.values()).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    key = next(key for key in ("pred_masks", "class_queries_logits", "logits") if key in found)
    out_sorted = found[key].detach().cpu().sort(1).values  # queries whose scores round to the same come in any order
    results[name] = {"out": out_sorted, "loss": float(out.loss) if out.get("loss") is not None else None, "norm": norm}
torch.save(results, sys.argv[1])
