"""More small tensors than one batch may make, fill, read or free."""

import torch

N = 41_000
total = torch.zeros((), device="cuda")
for make in (lambda i: torch.empty(2, device="cuda"), lambda i: torch.tensor(float(i), device="cuda")):
    tensors = [make(i) for i in range(N)]
    torch.cuda.synchronize()
    total += 1
    del tensors
    assert total.item() > 0
parts = [torch.full((), 2.0, device="cuda") for _ in range(5_000)]
print(total.item(), torch.stack(parts).sum().item(), torch.cuda.memory_allocated() < 1 << 20)
