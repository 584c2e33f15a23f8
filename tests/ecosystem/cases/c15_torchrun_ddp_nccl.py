"""torchrun with one process: DistributedDataParallel over NCCL."""

# cpu: no
# timeout: 240
import subprocess
import sys

import torch

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).cuda())
model(torch.ones(3, 4, device="cuda")).sum().backward()
print("grad", model.module.bias.grad.tolist())
dist.destroy_process_group()
"""
with open("train.py", "w") as file:
    file.write(SCRIPT)
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "train.py"]
done = subprocess.run(command, capture_output=True, text=True)
sys.stderr.write(done.stderr)
assert done.returncode == 0, [line for line in done.stderr.splitlines() if "Error: " in line][:1]
torch.save({"out": done.stdout}, sys.argv[1])
