"""fully_shard (FSDP2) on one device."""

# cpu: no
# timeout: 240
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
loss = model(torch.ones(3, 4, device="cuda")).sum()
loss.backward()
dist.destroy_process_group()
torch.save({"loss": loss.item()}, sys.argv[1])
