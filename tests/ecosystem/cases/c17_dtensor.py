"""DTensor over a mesh of one device."""

# cpu: no
# timeout: 240
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cuda", (1,))
x = distribute_tensor(torch.arange(8.0, device="cuda").view(4, 2), mesh, [Shard(0)])
total = (x * 2).sum().full_tensor().item()
dist.destroy_process_group()
torch.save({"total": total}, sys.argv[1])
