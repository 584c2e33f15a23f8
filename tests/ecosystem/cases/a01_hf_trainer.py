"""transformers.Trainer: training, evaluation with metrics, prediction."""

# requires: transformers, accelerate
import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sums(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        ids = torch.tensor([(i * 7 + j * 3) % 38 + 2 for j in range(8)])
        return {"input_ids": ids, "attention_mask": (torch.arange(8) < 8 - i % 4).long(), "labels": torch.tensor(i % 2)}


torch.manual_seed(0)
quiet = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16, **quiet
    )
)
arguments = TrainingArguments(
    "out",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    report_to=[],
    disable_tqdm=True,
    logging_steps=1,
    save_strategy="no",
    seed=0,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=Sums(),
    eval_dataset=Sums(),
    compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
)
trainer.train()
results = {"losses": [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]}
found = trainer.evaluate()
results |= {
    "eval": found["eval_loss"],
    "accuracy": found["eval_accuracy"],
    "predictions": torch.from_numpy(trainer.predict(Sums()).predictions),
}
results["device"] = trainer.args.device.type == device
torch.save(results, sys.argv[1])
