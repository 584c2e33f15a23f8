"""accelerate: precisions, accumulation, clipping, gathering, saving and loading of states."""

# requires: accelerate
# tolerance: 5e-2
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
results = {}
for precision in ("no", "bf16"):
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, 4), scheduler)
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.save_state(precision)
    before = {k: v.cpu().clone() for k, v in accelerator.get_state_dict(model).items()}
    accelerator.load_state(precision)
    results[precision] = [
        losses,
        before,
        all(torch.equal(before[k], v.cpu()) for k, v in model.state_dict().items()),
        accelerator.device.type == device,
    ]
torch.save(results, sys.argv[1])
