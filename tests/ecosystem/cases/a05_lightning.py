"""Lightning's Trainer in 32-bit, bf16 and 16-bit precision."""

# requires: lightning
# tolerance: 5e-2
import sys

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.seen = []

    def training_step(self, batch, i):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, i):
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
results = {}
for precision in ("32-true", "bf16-mixed", "bf16-true"):
    L.seed_everything(0)
    model = Model()
    trainer = L.Trainer(
        max_epochs=2,
        precision=precision,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, 8), DataLoader(data, 8))
    results[precision] = [model.seen, float(trainer.callback_metrics["val"])]
torch.save(results, sys.argv[1])
