"""Thirteen metrics of torchmetrics."""

# requires: torchmetrics
import sys

import torch
import torchmetrics as M

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
p, y = torch.rand(40, 4).softmax(-1).to(device), torch.randint(4, (40,)).to(device)
a, b = torch.randn(40).to(device), torch.randn(40).to(device)
task = dict(task="multiclass", num_classes=4)
kinds = {
    "accuracy": M.Accuracy(**task),
    "f1": M.F1Score(average="macro", **task),
    "precision": M.Precision(average=None, **task),
    "auroc": M.AUROC(**task),
    "confusion": M.ConfusionMatrix(**task),
    "kappa": M.CohenKappa(**task),
    "calibration": M.CalibrationError(**task),
    "precision curve": M.AveragePrecision(**task),
}
results = {}
for name, metric in kinds.items():
    metric = metric.to(device)
    metric.update(p[:20], y[:20])
    metric.update(p[20:], y[20:])
    results[name] = metric.compute().cpu()
for name, metric in {
    "mse": M.MeanSquaredError(),
    "mae": M.MeanAbsoluteError(),
    "r2": M.R2Score(),
    "pearson": M.PearsonCorrCoef(),
    "spearman": M.SpearmanCorrCoef(),
}.items():
    metric = metric.to(device)
    metric.update(a, b)
    results[name] = metric.compute().cpu()
torch.save(results, sys.argv[1])
