"""What torch.cuda says of memory, beside another task on the same device. Prints (free, total) and waits for a line, as often as asked."""

import sys

import torch

MIB = 1 << 20
kept = [torch.full((MIB // 4,), float(k), device="cuda") for k in range(int(sys.argv[1]))]
for line in sys.stdin:
    if line.strip() == "drop":
        kept.pop()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    print(free // MIB, total // MIB, torch.cuda.memory_allocated() // MIB, torch.cuda.max_memory_allocated() // MIB, flush=True)
