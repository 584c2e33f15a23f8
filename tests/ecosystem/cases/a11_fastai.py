"""fastai: a learner, one cycle, predictions, half precision."""

# requires: fastai
# tolerance: 1e-2
import sys

import torch
from fastai.basics import DataLoaders, Learner, accuracy
from fastai.callback.schedule import fit_one_cycle  # noqa: F401
from fastai.data.load import DataLoader
from torch.utils.data import TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
dls = DataLoaders(DataLoader(data, 12, num_workers=0), DataLoader(data, 12, num_workers=0), device=torch.device(device))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
learner = Learner(dls, model, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, path=".")
with learner.no_bar(), learner.no_logging():
    learner.fit_one_cycle(2, 1e-2)
    results = {"values": [float(v) for v in learner.recorder.values[-1]], "losses": [float(v) for v in learner.recorder.losses]}
    results["predictions"] = learner.get_preds()[0].cpu()
torch.save(results, sys.argv[1])
