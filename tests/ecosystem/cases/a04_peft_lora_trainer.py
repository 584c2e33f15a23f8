"""LoRA and DoRA of peft under the Trainer: training, saving, loading, merging."""

# requires: transformers, peft, accelerate
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
data = [{"input_ids": torch.arange(i, i + 8) % 40, "labels": torch.arange(i, i + 8) % 40} for i in range(12)]
ids = torch.arange(8).view(1, 8).to(device)
results = {}
for name in ("lora", "dora"):
    torch.manual_seed(0)
    base = LlamaForCausalLM(config)
    state = {k: v.clone() for k, v in base.state_dict().items()}
    model = get_peft_model(
        base, LoraConfig(r=4, target_modules="all-linear", use_dora=name == "dora", lora_dropout=0.0, task_type="CAUSAL_LM")
    )
    arguments = TrainingArguments(
        "out",
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        seed=0,
        save_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    results[name] = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    model.save_pretrained(name)
    fresh = LlamaForCausalLM(config)
    fresh.load_state_dict(state)
    loaded = PeftModel.from_pretrained(fresh, name).to(device).eval()
    with torch.no_grad():
        results[name + " logits"] = loaded(input_ids=ids).logits.cpu()
        results[name + " merged"] = loaded.merge_and_unload()(input_ids=ids).logits.cpu()
torch.save(results, sys.argv[1])
