"""Every optimiser of torch.optim, its schedulers, fused and foreach forms."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
kinds = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True),
    "Adam": dict(lr=0.01, amsgrad=True),
    "AdamW": dict(lr=0.01, fused=True),
    "Adamax": {},
    "NAdam": {},
    "RAdam": dict(foreach=True),
    "Adagrad": {},
    "Adadelta": {},
    "RMSprop": dict(centered=True, momentum=0.5),
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
    "LBFGS": dict(max_iter=3),
}
results = {}
for name, options in kinds.items():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).to(device)
    x, y = torch.randn(12, 5).to(device), torch.randn(12, 1).to(device)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

    def closure(model=model, x=x, y=y, optimizer=optimizer):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    results[name] = []
    for _ in range(4):
        results[name].append(optimizer.step(closure).item())
        scheduler.step()
torch.save(results, sys.argv[1])
