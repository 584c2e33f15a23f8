"""DistributedDataParallel over gloo, two processes."""

# cpu: no
# timeout: 240
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
    model(torch.full((3, 4), float(rank), device="cuda")).sum().backward()
    if rank == 0:
        torch.save([p.grad.cpu() for p in model.parameters()], "grads.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    import os

    mp.spawn(work, (os.path.abspath("rendezvous"),), nprocs=2)
    torch.save(torch.load("grads.pt"), sys.argv[1])
