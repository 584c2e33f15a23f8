"""generate(): greedy, beams, penalties, static cache, assisted, prompt lookup, sampling."""

# requires: transformers
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
ends = dict(vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2)
config = LlamaConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, initializer_range=0.5, **ends
)
model = LlamaForCausalLM(config).eval().to(device)
draft = LlamaForCausalLM(config).eval().to(device)
ids = torch.tensor([[5, 6, 7, 8, 5, 6], [0, 0, 9, 10, 11, 9]]).to(device)
mask = (ids != 0).long()
common = dict(input_ids=ids, attention_mask=mask, max_new_tokens=8)
results = {
    "greedy": model.generate(do_sample=False, **common).cpu(),
    "beam": model.generate(num_beams=3, do_sample=False, num_return_sequences=2, **common).cpu(),
    "penalties": model.generate(
        do_sample=False, repetition_penalty=1.5, no_repeat_ngram_size=2, min_new_tokens=4, bad_words_ids=[[7]], **common
    ).cpu(),
    "static": model.generate(do_sample=False, cache_implementation="static", **common).cpu(),
    "no cache": model.generate(do_sample=False, use_cache=False, **common).cpu(),
    "assisted": model.generate(ids[:1], max_new_tokens=8, do_sample=False, assistant_model=draft).cpu(),
    "lookup": model.generate(ids[:1], max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3).cpu(),
}
torch.manual_seed(0)
sampled = model.generate(do_sample=True, top_k=1, temperature=0.7, **common)
results["sampled from one"] = sampled.cpu()
sampled = model.generate(do_sample=True, top_p=0.9, min_p=0.01, typical_p=0.95, num_return_sequences=2, **common)
results["sampled"] = [sampled.shape, bool((sampled[:, :6] == ids.repeat_interleave(2, 0)).all())]
out = model.generate(do_sample=False, output_scores=True, return_dict_in_generate=True, **common)
results["scores"] = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True).cpu()
torch.manual_seed(0)
gpt = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **ends)).eval().to(device)
results["gpt2"] = gpt.generate(do_sample=False, **common).cpu()
torch.save(results, sys.argv[1])
