"""DistributedDataParallel over gloo, one process, model on the device."""

# cpu: no
# timeout: 240
import sys

import torch
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[0])
model(torch.ones(3, 4, device="cuda")).sum().backward()
grads = [p.grad.cpu() for p in model.parameters()]
dist.destroy_process_group()
torch.save(grads, sys.argv[1])
