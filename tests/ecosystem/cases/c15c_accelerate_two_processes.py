"""accelerate launch with two processes: preparing, training, gathering; then FSDP2 by its plugin."""

# cpu: no
# timeout: 400
import subprocess
import sys

import torch

SCRIPT = """
import sys, torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True) if sys.argv[1] == "fsdp" else None
accelerator = Accelerator(fsdp_plugin=plugin)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
optimiser = torch.optim.SGD(model.parameters(), 0.1)
model, optimiser, loader = accelerator.prepare(model, optimiser, torch.utils.data.DataLoader(data, batch_size=4))
losses = []
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimiser.step()
    optimiser.zero_grad()
    losses.append(accelerator.gather(loss.detach()[None]).cpu())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    torch.save(torch.stack(losses), sys.argv[1] + ".pt")
accelerator.end_training()
"""
with open("train.py", "w") as file:
    file.write(SCRIPT)
result = {}
for kind in ("ddp", "fsdp"):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes=2", "--multi_gpu", "train.py", kind]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, [line for line in done.stderr.splitlines() if "Error: " in line][:1]
    result[kind] = torch.load(f"{kind}.pt")
torch.testing.assert_close(result["fsdp"], result["ddp"])
torch.save(result, sys.argv[1])
