"""Stacks and concatenations of constants, computed with at once."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


def one(value):
    return torch.full((), value, device=device)


results = {
    "stack": (torch.stack([one(1.5), one(2.5)]) * 2).tolist(),
    "cat": (torch.cat([torch.full((1,), v, device=device) for v in (1.5, 2.5, 3.5)]) + 1).tolist(),
    "mixed": (torch.cat([torch.zeros(2, device=device), torch.ones(3, device=device), torch.full((1,), 7.0, device=device)]) * 3).tolist(),
}
c, s = torch.cos(one(0.5)), torch.sin(one(0.5))
rotation = torch.stack([torch.stack([c, -s, one(0.0)]), torch.stack([s, c, one(0.0)]), torch.stack([one(0.0), one(0.0), one(1.0)])])
results["matrix"] = (rotation @ rotation.T).cpu()
labels = torch.cat([torch.ones(4, 1, device=device), torch.zeros(4, 1, device=device)])
logits = torch.linspace(-2, 2, 8).view(8, 1).to(device).requires_grad_()
loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
loss.backward()
results |= {"loss": loss.item(), "grad": logits.grad.cpu()}
board = torch.zeros(4, 4, device=device)
board[0] = 1.0
board[1:3, 1:] = 2.0
board[3, 3] = 5.0
results["board"] = (board + 1).cpu()
results["tokens"] = (torch.cat([torch.full((2, 1), 101, device=device), torch.full((2, 3), 7, device=device)], 1) + 1).cpu()
torch.save(results, sys.argv[1])
