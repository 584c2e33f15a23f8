"""Whisper: features, loss and generation."""

# requires: transformers
import sys

import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = WhisperConfig(
    vocab_size=80,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    num_mel_bins=80,
    max_source_positions=50,
    max_target_positions=32,
    decoder_start_token_id=3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)
model = WhisperForConditionalGeneration(config).eval().to(device)
wave = torch.sin(torch.arange(16000) * 0.05).numpy()
features = WhisperFeatureExtractor(chunk_length=1)(wave, sampling_rate=16000, return_tensors="pt").input_features.to(device)
labels = torch.tensor([[4, 5, 6, 7]]).to(device)
loss = model(input_features=features, labels=labels).loss
loss.backward()
results = {"loss": loss.item(), "grad": model.model.encoder.conv1.weight.grad.cpu()}
results["tokens"] = model.generate(features, max_new_tokens=6, do_sample=False).cpu()
torch.save(results, sys.argv[1])
