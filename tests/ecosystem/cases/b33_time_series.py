"""Forecasting models of transformers: time-series transformer, Informer, Autoformer, PatchTST, PatchTSMixer, with gradients"""

# requires: transformers
import sys

import torch
from transformers import (
    AutoformerConfig,
    AutoformerForPrediction,
    InformerConfig,
    InformerForPrediction,
    PatchTSMixerConfig,
    PatchTSMixerForPrediction,
    PatchTSTConfig,
    PatchTSTForPrediction,
    TimeSeriesTransformerConfig,
    TimeSeriesTransformerForPrediction,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
lagged = dict(
    prediction_length=4,
    context_length=8,
    lags_sequence=[1, 2],
    num_time_features=1,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=16,
    decoder_ffn_dim=16,
)
patches = dict(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16)
torch.manual_seed(1)
series = dict(
    past_values=torch.rand(2, 10),
    past_time_features=torch.rand(2, 10, 1),
    past_observed_mask=torch.ones(2, 10),
    future_values=torch.rand(2, 4),
    future_time_features=torch.rand(2, 4, 1),
)
channels = dict(past_values=torch.rand(2, 16, 2), future_values=torch.rand(2, 4, 2))
models = {
    "transformer": (lambda: TimeSeriesTransformerForPrediction(TimeSeriesTransformerConfig(**lagged)), series),
    "informer": (lambda: InformerForPrediction(InformerConfig(**lagged)), series),
    "autoformer": (lambda: AutoformerForPrediction(AutoformerConfig(**lagged, label_length=4, moving_average=3)), series),
    "patchtst": (
        lambda: PatchTSTForPrediction(PatchTSTConfig(**patches, num_attention_heads=2, num_hidden_layers=1, ffn_dim=16)),
        channels,
    ),
    "patchtsmixer": (lambda: PatchTSMixerForPrediction(PatchTSMixerConfig(**patches, num_layers=1)), channels),
}
results = {}
for name, (make, inputs) in models.items():
    torch.manual_seed(0)
    model = make().eval().to(device)
    out = model(**{key: value.to(device) for key, value in inputs.items()})
    out.loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    results[name] = {"loss": out.loss.item(), "norm": norm}
torch.save(results, sys.argv[1])
