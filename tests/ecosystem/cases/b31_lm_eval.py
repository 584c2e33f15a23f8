"""lm-evaluation-harness: a small transformers model on a task of its own."""

# requires: lm_eval, transformers
import sys

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

device = "cuda" if torch.cuda.is_available() else "cpu"
words = [f"w{at}" for at in range(60)] + ["<unk>", "<eos>"]
raw = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>")
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=62, max_position_embeddings=64)
).to(device)
lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device=device)
pairs = [(" ".join(words[at : at + 6]), " " + " ".join(words[at + 6 : at + 9])) for at in range(0, 40, 4)]
requests = [Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(pairs)]
found = lm.loglikelihood(requests, disable_tqdm=True)
rolling = lm.loglikelihood_rolling(
    [Instance("loglikelihood_rolling", {}, (pair[0],), at) for at, pair in enumerate(pairs[:3])], disable_tqdm=True
)
made = lm.generate_until(
    [
        Instance("generate_until", {}, (pair[0], {"until": ["<eos>"], "max_gen_toks": 6, "do_sample": False}), at)
        for at, pair in enumerate(pairs[:4])
    ],
    disable_tqdm=True,
)
torch.save({"loglikelihood": [[float(a), bool(b)] for a, b in found], "rolling": [float(r) for r in rolling], "made": made}, sys.argv[1])
