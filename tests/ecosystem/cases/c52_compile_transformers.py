"""torch.compile of 24 models of transformers by default: logits and gradients."""

# requires: transformers
# tolerance: 2e-3
# timeout: 900
import sys
import warnings

import torch
import transformers as T

device = "cuda" if torch.cuda.is_available() else "cpu"
T.logging.set_verbosity_error()
text = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
grouped = dict(text, num_key_value_heads=2)
image = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8)
pair = dict(
    vocab_size=99,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
)
models = {
    "bert": lambda: T.BertForSequenceClassification(T.BertConfig(**text)),
    "roberta": lambda: T.RobertaForMaskedLM(T.RobertaConfig(**text)),
    "distilbert": lambda: T.DistilBertForMaskedLM(T.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64)),
    "albert": lambda: T.AlbertForMaskedLM(T.AlbertConfig(**text, embedding_size=16)),
    "electra": lambda: T.ElectraForMaskedLM(T.ElectraConfig(**text, embedding_size=16)),
    "deberta": lambda: T.DebertaV2ForMaskedLM(T.DebertaV2Config(**text, relative_attention=True, pos_att_type=["p2c", "c2p"])),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)),
    "gpt_neox": lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**text)),
    "opt": lambda: T.OPTForCausalLM(
        T.OPTConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32)
    ),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**text)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**grouped)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**grouped)),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**grouped, head_dim=8)),
    "gemma": lambda: T.GemmaForCausalLM(T.GemmaConfig(**grouped, head_dim=8)),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**grouped, head_dim=8)),
    "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**grouped, pad_token_id=0)),
    "falcon": lambda: T.FalconForCausalLM(T.FalconConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)),
    "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(**grouped, num_local_experts=4)),
    "mamba": lambda: T.MambaForCausalLM(T.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4)),
    "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)),
    "bart": lambda: T.BartForConditionalGeneration(T.BartConfig(**pair)),
    "whisper": lambda: T.WhisperForConditionalGeneration(
        T.WhisperConfig(
            **pair, max_source_positions=20, num_mel_bins=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1
        )
    ),
    "vit": lambda: T.ViTForImageClassification(T.ViTConfig(**image)),
    "dinov2": lambda: T.Dinov2ForImageClassification(
        T.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)
    ),
}
results = {}
for name, make in models.items():
    torch.compiler.reset()
    # Mixtral's experts read a value in an operator of its own.
    warnings.filterwarnings("ignore" if name == "mixtral" else "error", message="torch.compile executes a graph as it is")
    torch.manual_seed(0)
    model = make().to(device).eval()
    ids, pixels, sound = torch.randint(0, 99, (2, 12)).to(device), torch.randn(2, 3, 32, 32).to(device), torch.randn(2, 16, 40).to(device)
    inputs = (
        {"pixel_values": pixels} if name in ("vit", "dinov2") else {"input_features": sound} if name == "whisper" else {"input_ids": ids}
    )
    if name in ("t5", "bart", "whisper"):
        inputs["decoder_input_ids"] = ids[:, :6]
    called = torch.compile(model) if device == "cuda" else model
    for _ in range(2):
        model.zero_grad()
        logits = called(**inputs).logits
        logits.square().mean().backward()
    grads = [p.grad.norm() for p in model.parameters() if p.grad is not None and p.grad.any()]
    results[name] = {"logits": logits.detach().cpu(), "grad": torch.stack(grads).norm().item()}
torch.save(results, sys.argv[1])
