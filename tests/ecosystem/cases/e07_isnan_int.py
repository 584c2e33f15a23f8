"""Operations whose answer is a constant for integers, booleans and empty tensors."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
i, b = torch.tensor([1, -2, 3]).to(device), torch.tensor([True, False]).to(device)
empty = torch.empty(0, device=device)
results = {
    "isnan": [torch.isnan(i).tolist(), torch.isnan(b).tolist()],
    "isinf": [torch.isinf(i).tolist(), torch.isposinf(i).tolist(), torch.isneginf(b).tolist(), torch.isfinite(i).tolist()],
    "signbit": [torch.signbit(b).tolist(), torch.signbit(i).tolist()],
    "any": [
        empty.any().item(),
        empty.all().item(),
        torch.empty(3, 0, device=device).any(1).tolist(),
        torch.empty(0, 2, device=device).all(0).tolist(),
    ],
    "scatter_reduce": [
        torch.zeros(3, dtype=torch.bool, device=device).scatter_reduce(0, torch.tensor([0, 2], device=device), b, how).tolist()
        for how in ("amin", "amax")
    ],
    "inv": torch.linalg.inv(torch.empty(0, 3, 3, device=device)).shape,
    "cholesky": torch.linalg.cholesky(torch.empty(2, 0, 0, device=device)).shape,
    "fill": [
        torch.full((2,), True, device=device).tolist(),
        i.clone().fill_(True).tolist(),
        torch.zeros(2, device=device).fill_(False).tolist(),
    ],
    "where": torch.where(b, True, False).tolist(),
    "sums": [empty.sum().item(), empty.prod().item(), b.sum().item(), empty.mean().isnan().item()],
}
results["afterwards"] = (i * 2).tolist()
torch.save(results, sys.argv[1])
