"""PyTorch Forecasting: a temporal fusion transformer is trained."""

# requires: pytorch_forecasting, lightning, pandas
# tolerance: 2e-3
import sys
import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import torch
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.metrics import QuantileLoss

warnings.filterwarnings("ignore")
pl.seed_everything(0, verbose=False)
frame = pd.DataFrame({"t": np.tile(np.arange(60), 4), "group": np.repeat(list("abcd"), 60)})
frame["value"] = np.sin(frame.t / 5.0) + frame.group.map(dict(zip("abcd", range(4)))) + 0.1 * np.random.default_rng(0).normal(size=240)
series = TimeSeriesDataSet(
    frame,
    time_idx="t",
    target="value",
    group_ids=["group"],
    max_encoder_length=12,
    max_prediction_length=4,
    time_varying_unknown_reals=["value"],
    time_varying_known_reals=["t"],
    static_categoricals=["group"],
)
loader = series.to_dataloader(train=True, batch_size=32, num_workers=0, shuffle=False)
model = TemporalFusionTransformer.from_dataset(
    series,
    hidden_size=8,
    attention_head_size=2,
    dropout=0.0,
    hidden_continuous_size=4,
    loss=QuantileLoss(),
    learning_rate=0.01,
    log_interval=0,
    reduce_on_plateau_patience=10,
)
trainer = pl.Trainer(
    max_epochs=1,
    limit_train_batches=4,
    accelerator="auto",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
x, _ = next(iter(loader))
model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
found = model({k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in x.items()})
torch.save(
    {
        "prediction": found.prediction.detach().cpu(),
        "loss": float(trainer.callback_metrics["train_loss_step"]) if "train_loss_step" in trainer.callback_metrics else 0.0,
    },
    sys.argv[1],
)
