"""Shape, type and device errors: torch's exception classes and messages, raised at the call; the script continues."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
a, b = torch.ones(2, 3).to(device), torch.ones(4, 5).to(device)
results = {}
wrong = {
    "matmul": lambda: a @ b,
    "add": lambda: a + b,
    "cat": lambda: torch.cat([a, b]),
    "view": lambda: a.view(5),
    "index": lambda: a[7],
    "dtype": lambda: torch.tensor([1, 2]).to(device).float() @ torch.tensor([1, 2]).to(device),
    "item": lambda: a.item(),
    "grad": lambda: a.sum().backward(),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(a, torch.zeros(3, dtype=torch.long).to(device)),
    "inplace": lambda: a.requires_grad_().add_(1),
}
for name, call in wrong.items():
    try:
        call()
        results[name] = "no error"
    except Exception as error:
        results[name] = type(error).__name__
results["afterwards"] = (b * 2).sum().item()
torch.save(results, sys.argv[1])
