"""Lightning with accelerator="auto", gradient clipping and accumulation, deterministic, a profiler, checkpoints, early stopping."""

# requires: lightning
import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, i):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, i):
        self.log("val", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
results = {}
for name, options in {
    "auto": dict(accelerator="auto", devices="auto"),
    "all": dict(devices=-1 if device == "cuda" else 1, gradient_clip_val=0.5, accumulate_grad_batches=2),
    "deterministic": dict(deterministic=True),
    "profiler": dict(profiler="simple"),
}.items():
    L.seed_everything(0)
    model = Model()
    callbacks = [EarlyStopping("val"), ModelCheckpoint(dirpath=name, monitor="val")]
    trainer = L.Trainer(max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks, **options)
    trainer.fit(model, DataLoader(data, 8), DataLoader(data, 8))
    results[name] = [float(trainer.callback_metrics["val"]), model.net.weight.detach().cpu(), trainer.strategy.root_device.type == device]
torch.save(results, sys.argv[1])
