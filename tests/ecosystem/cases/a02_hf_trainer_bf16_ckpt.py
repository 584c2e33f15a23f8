"""transformers.Trainer in bf16 with gradient checkpointing and accumulation, resumed from a checkpoint."""

# requires: transformers, accelerate
# tolerance: 5e-2
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

device = "cuda" if torch.cuda.is_available() else "cpu"
data = [{"input_ids": torch.arange(i, i + 8) % 40, "labels": torch.arange(i, i + 8) % 40} for i in range(16)]
torch.manual_seed(0)
config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=16, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
common = dict(
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    bf16=True,
    use_cpu=device == "cpu",
    report_to=[],
    disable_tqdm=True,
    logging_steps=1,
    learning_rate=1e-3,
    seed=0,
    data_seed=0,
    save_steps=2,
)
trainer = Trainer(GPT2LMHeadModel(config), TrainingArguments("out", max_steps=4, **common), train_dataset=data)
trainer.train()
results = {"losses": [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]}
again = Trainer(GPT2LMHeadModel(config), TrainingArguments("out", max_steps=4, **common), train_dataset=data)
again.train(resume_from_checkpoint="out/checkpoint-2")
results["resumed"] = [float(entry["loss"]) for entry in again.state.log_history if "loss" in entry]
torch.save(results, sys.argv[1])
