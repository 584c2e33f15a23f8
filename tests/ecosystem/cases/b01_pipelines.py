"""Hugging Face pipelines on device 0 with small random models."""

# requires: transformers, tokenizers
import sys

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
words = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat and dog ran home fast what where red blue".split()
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
names = dict(
    pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", eos_token="[SEP]", bos_token="[CLS]"
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=32, **names)
small = BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32
)
text = ["the cat sat on a mat", "dog ran home"]
where = 0 if device == "cuda" else -1
results = {}


def made(model, *arguments):
    torch.manual_seed(0)
    return model(*arguments).eval()


results["text"] = pipeline("text-classification", model=made(BertForSequenceClassification, small), tokenizer=tokenizer, device=where)(
    text, batch_size=2
)
found = pipeline("token-classification", model=made(BertForTokenClassification, small), tokenizer=tokenizer, device=where)(text)
results["token"] = [[float(t["score"]) for t in row] for row in found]
results["mask"] = [
    r["score"] for r in pipeline("fill-mask", model=made(BertForMaskedLM, small), tokenizer=tokenizer, device=where)("the [MASK] sat")
]
gpt = made(
    GPT2LMHeadModel, GPT2Config(vocab_size=len(words), n_embd=32, n_layer=2, n_head=2, n_positions=32, eos_token_id=3, bos_token_id=2)
)
results["generate"] = pipeline("text-generation", model=gpt, tokenizer=tokenizer, device=where)(
    "the cat", max_new_tokens=4, do_sample=False
)[0]["generated_text"]
vit = made(
    ViTForImageClassification,
    ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8),
)
image = Image.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3))
results["image"] = pipeline(
    "image-classification", model=vit, image_processor=ViTImageProcessor(size={"height": 32, "width": 32}), device=where
)(image)
features = pipeline("feature-extraction", model=made(BertForQuestionAnswering, small).bert, tokenizer=tokenizer, device=where)(text[0])
results["features"] = torch.tensor(features)
torch.save(results, sys.argv[1])
