"""TRL's GRPOTrainer with a random tiny model."""

# requires: trl, transformers, datasets, tokenizers
# cpu: no
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = "<pad> <unk> <eos> the cat sat on a mat dog ran home".split()
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", padding_side="left")
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=0,
        eos_token_id=2,
    )
)
data = Dataset.from_dict({"prompt": ["the cat", "the dog", "a mat", "a cat"]})
options = dict(
    max_steps=2,
    per_device_train_batch_size=4,
    num_generations=2,
    max_completion_length=6,
    report_to=[],
    disable_tqdm=True,
    logging_steps=1,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
)
trainer = GRPOTrainer(
    model,
    lambda completions, **_: [float(len(c)) for c in completions],
    GRPOConfig("out", **options),
    train_dataset=data,
    processing_class=tokenizer,
)
trainer.train()
torch.save({"losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]}, sys.argv[1])
