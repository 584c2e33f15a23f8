"""What language models cost, in Wooly Credits: ``python -m benchmarks.models [--runs N] [--publish]``.

Each model is an unmodified script of transformers with random weights: nine calls of ``generate`` with ``max_length=100``, one prompt, seed
100000. Shapes are those of the published models, with widths and vocabularies divided by WIDTH, heads by half of that and layers by LAYERS,
so that they fit a small machine. Published are the means of the runs, on one stack.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.node import until
from tests.support.sections import write_section
from tests.support.stack import ROOT, EmbeddedStack

__all__ = ["MODELS", "Shape", "parameters", "script"]

WIDTH: Final = 8
LAYERS: Final = 4
_CALLS: Final = 9
_LENGTH: Final = 100
_PAGE: Final = ROOT / "docs" / "models.md"


class Shape(NamedTuple):
    """Of a published model. ``family``: the name of its configuration in transformers, without "Config"."""

    family: str
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


MODELS: Final[dict[str, Shape]] = {
    "Llama-3.2-1B, 1B-Instruct": Shape("Llama", 2048, 8192, 16, 32, 8, 128_256),
    "Llama-3.2-3B, 3B-Instruct": Shape("Llama", 3072, 8192, 28, 24, 8, 128_256),
    "Mistral-7B-Instruct": Shape("Mistral", 4096, 14_336, 32, 32, 8, 32_768),
    "Falcon3-7B-Instruct": Shape("Llama", 3072, 23_040, 28, 12, 4, 131_072),
    "Llama-3.1-8B, 8B-Instruct": Shape("Llama", 4096, 14_336, 32, 32, 8, 128_256),
    "Dolly-v2-12B": Shape("GPTNeoX", 5120, 20_480, 36, 40, 40, 50_280),
    "Llama-2-13B-chat": Shape("Llama", 5120, 13_824, 40, 40, 40, 32_000),
}
"""By name; an instructed model has the shape of its base, and with random weights the same cost."""


def script(shape: Shape) -> str:
    """What a user would write, of the scaled shape."""
    grouped = "" if shape.family == "GPTNeoX" else f" num_key_value_heads={max(1, shape.kv_heads // (WIDTH // 2))},"
    return f"""import torch
from transformers import AutoModelForCausalLM, {shape.family}Config

torch.manual_seed(100000)
config = {shape.family}Config(
    vocab_size={shape.vocabulary // WIDTH}, hidden_size={shape.width // WIDTH}, intermediate_size={shape.inner // WIDTH},
    num_hidden_layers={shape.layers // LAYERS}, num_attention_heads={shape.heads // (WIDTH // 2)},{grouped}
)
model = AutoModelForCausalLM.from_config(config).to("cuda").eval()
prompt = torch.randint(3, config.vocab_size, (1, 12)).to("cuda")
for _ in range({_CALLS}):
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_length={_LENGTH}, do_sample=False, eos_token_id=None, pad_token_id=0)
"""


def _run(stack: EmbeddedStack, name: str, text: str, folder: Path) -> dict[str, Any]:
    """The bill of one run, and ``wall_s`` of its process."""
    path = folder / f"{name}.py"
    path.write_text(text)
    began_s = time.monotonic()
    environment = stack.client_environment(CONTROLLER_URL=stack.addresses["controller"])
    subprocess.run([sys.executable, str(path)], env=environment, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    wall_s = time.monotonic() - began_s

    def billed() -> dict[str, Any] | None:
        tasks = [task for task in stack.get("controller", "/api/v1/tasks")["items"] if task["title"] == path.name]
        rows = {row["key"]: row for row in stack.get("billing", "/api/v1/billing/credits?by=task")["items"]}
        over = tasks and tasks[0]["state"] == "completed" and not tasks[0]["sessions"]
        return rows.get(tasks[0]["id"]) if over else None

    return until(billed, f"the bill of {name}") | {"wall_s": wall_s}


def measure(runs: int) -> list[str]:
    """Lines of the table."""
    lines = [
        "| model | parameters here | core credits | VRAM credits | core-seconds | GiB-seconds | left to others |",
        "|---|---|---|---|---|---|---|",
    ]
    with EmbeddedStack() as stack, tempfile.TemporaryDirectory() as folder:
        cores = stack.get("controller", "/api/v1/nodes")["items"][0]["devices"][0]["cores"]
        for at, (name, shape) in enumerate(MODELS.items()):
            text = script(shape)
            _run(stack, f"warm-{at}", text, Path(folder))  # compiles what the runs use
            found = [_run(stack, f"model-{at}-{run}", text, Path(folder)) for run in range(runs)]
            core, vram, core_s, gib_s = (
                statistics.fmean(one[key] for one in found) / unit
                for key, unit in (("core_credits_micro", 1e6), ("vram_credits_micro", 1e6), ("core_ns", 1e9), ("byte_ms", 1e3 * 2**30))
            )
            left = 1 - core_s / (statistics.fmean(one["wall_s"] for one in found) * cores)
            size = f"{parameters(shape) / 1e6:.1f} million"
            lines.append(f"| {name} | {size} | {core:,.0f} | {vram:,.0f} | {core_s:.2f} | {gib_s:.2f} | {100 * left:.0f} % |")
            print(lines[-1], flush=True)
    return lines


def parameters(shape: Shape) -> int:
    """Of the scaled model, without norms and biases."""
    width, inner, layers = shape.width // WIDTH, shape.inner // WIDTH, shape.layers // LAYERS
    head = width // (shape.heads // (WIDTH // 2))
    kv = width if shape.family == "GPTNeoX" else head * max(1, shape.kv_heads // (WIDTH // 2))
    matrices = 2 if shape.family == "GPTNeoX" else 3
    return 2 * shape.vocabulary // WIDTH * width + layers * (2 * width * width + 2 * width * kv + matrices * width * inner)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="write the table to docs/models.md")
    options = parser.parse_args()
    lines = measure(options.runs)
    if options.publish:
        said = f"Means of {options.runs} runs; widths and vocabularies divided by {WIDTH}, heads by {WIDTH // 2}, layers by {LAYERS}.\n\n"
        write_section(_PAGE, "models", said + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
