"""transformers.Trainer with fused AdamW, Adafactor, torch_compile, workers, label smoothing."""

# requires: transformers, accelerate
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def run(name, device, **options):
    data = [{"input_ids": torch.arange(i, i + 8) % 40, "labels": torch.arange(i, i + 8) % 40} for i in range(12)]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2, n_positions=16, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    )
    arguments = TrainingArguments(
        name,
        max_steps=3,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        seed=0,
        save_strategy="no",
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = {
        "fused": run("a", device, optim="adamw_torch_fused"),
        "adafactor": run("b", device, optim="adafactor"),
        "workers": run("c", device, dataloader_num_workers=1, dataloader_pin_memory=True, label_smoothing_factor=0.1),
        "sgd": run("d", device, optim="sgd", max_grad_norm=0.5, lr_scheduler_type="cosine"),
        "compiled": run("e", device, torch_compile=device == "cuda"),
    }
    torch.save(results, sys.argv[1])
