"""torchrun with two ranks: transformers.Trainer, whose DDP looks for unused parameters."""

# timeout: 400
import subprocess
import sys

import torch

SCRIPT = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
ids = [torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(i)) for i in range(32)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, num_train_epochs=1, report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": i, "labels": i} for i in ids])
trainer.train()
assert arguments.world_size == 2
if arguments.process_index == 0:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    torch.save({"losses": losses, "weights": [p.detach().cpu() for p in trainer.model.parameters()]}, "result.pt")
"""
with open("train.py", "w") as file:
    file.write(SCRIPT)
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
done = subprocess.run(command, capture_output=True, text=True)
sys.stderr.write(done.stderr)
assert done.returncode == 0, [line for line in done.stderr.splitlines() if "Error: " in line][:1]
torch.save(torch.load("result.pt"), sys.argv[1])
