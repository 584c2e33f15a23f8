"""Audio models of transformers: Wav2Vec2 with CTC, HuBERT, AST, VITS-like vocoders left out."""

# requires: transformers
import sys

import torch
from transformers import ASTConfig, ASTModel, HubertConfig, HubertModel, Wav2Vec2Config, Wav2Vec2ForCTC

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
small = dict(
    vocab_size=20,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    conv_dim=(16, 16),
    conv_stride=(4, 4),
    conv_kernel=(8, 8),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    feat_proj_dropout=0.0,
    layerdrop=0.0,
    mask_time_prob=0.0,
    final_dropout=0.0,
    pad_token_id=0,
)
wave = torch.sin(torch.arange(1600) * 0.03).repeat(2, 1).to(device)
model = Wav2Vec2ForCTC(Wav2Vec2Config(**small)).to(device).train()
out = model(wave, labels=torch.tensor([[3, 4, 5], [6, 7, 0]]).to(device))
out.loss.backward()
results = {"loss": out.loss.item(), "logits": out.logits.detach().cpu(), "grad": model.lm_head.weight.grad.cpu()}
hubert = HubertModel(HubertConfig(**small)).to(device).eval()
results["hubert"] = hubert(wave).last_hidden_state.detach().cpu()
ast = (
    ASTModel(
        ASTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_length=64, num_mel_bins=16, patch_size=8
        )
    )
    .eval()
    .to(device)
)
results["ast"] = ast(torch.randn(2, 64, 16).to(device)).last_hidden_state.detach().cpu()
torch.save(results, sys.argv[1])
