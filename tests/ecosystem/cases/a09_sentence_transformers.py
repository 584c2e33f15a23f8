"""sentence-transformers: encoding, similarity, training."""

# requires: sentence_transformers, tokenizers
import sys

import torch
from sentence_transformers import InputExample, SentenceTransformer, losses, models
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

device = "cuda" if torch.cuda.is_available() else "cpu"
words = "[PAD] [UNK] [CLS] [SEP] the cat sat on a mat dog ran home".split()
raw = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=16
)
torch.manual_seed(0)
quiet = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
BertModel(
    BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        **quiet,
    )
).save_pretrained("bert")
tokenizer.save_pretrained("bert")
encoder = models.Transformer("bert", max_seq_length=16)
model = SentenceTransformer(modules=[encoder, models.Pooling(32, "mean")], device=device)
text = ["the cat sat", "a dog ran home", "the mat"]
embedded = model.encode(text, convert_to_tensor=True, normalize_embeddings=True)
results = {"encoded": embedded.cpu(), "similarity": model.similarity(embedded, embedded).cpu()}
loss = losses.MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
examples = [InputExample(texts=["the cat", "a cat"]), InputExample(texts=["the dog", "a dog"])]
seen = []
for batch, labels in DataLoader(examples, 2, collate_fn=model.smart_batching_collate):
    value = loss([{k: v.to(device) for k, v in part.items() if isinstance(v, torch.Tensor)} for part in batch], labels)
    value.backward()
    optimizer.step()
    seen.append(value.item())
results |= {"losses": seen, "trained": torch.from_numpy(model.encode(text))}
torch.save(results, sys.argv[1])
