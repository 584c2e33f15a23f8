"""DistributedDataParallel over NCCL, one process."""

# cpu: no
# timeout: 240
import os
import sys

import torch
import torch.distributed as dist

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("nccl", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[0])
model(torch.ones(3, 4, device="cuda")).sum().backward()
grads = [p.grad.cpu() for p in model.parameters()]
dist.destroy_process_group()
torch.save(grads, sys.argv[1])
