"""TRL's SFTTrainer with random tiny models."""

# requires: trl, transformers, datasets, tokenizers
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

device = "cuda" if torch.cuda.is_available() else "cpu"
words = "<pad> <unk> <eos> the cat sat on a mat dog ran home".split()
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")
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
data = Dataset.from_dict({"text": ["the cat sat on a mat", "the dog ran home", "a cat ran", "the mat sat"] * 4})
options = dict(
    max_steps=3,
    per_device_train_batch_size=4,
    report_to=[],
    disable_tqdm=True,
    logging_steps=1,
    seed=0,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
)
trainer = SFTTrainer(model, SFTConfig("out", **options), train_dataset=data, processing_class=tokenizer)
trainer.train()
results = {"losses": [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]}
torch.save(results, sys.argv[1])
