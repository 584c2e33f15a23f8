"""``train.py STEPS [mlp|gpt|generate|copy]``: work whose printed numbers and digest of weights tell every lost, repeated or changed
operation.

A training of a small network, one of a transformer with dropout, sampling from that with a growing cache, or copies to the device
and back. After each line that it prints it reads a line of the file that ``PACED`` of the environment names, if it is set.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

LINE = 20
"""Steps."""
PACE = Path(os.environ["PACED"]).open() if "PACED" in os.environ else None
WORDS, WIDTH, HEADS, LENGTH = 50, 32, 2, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.cache: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, *, grows: bool) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        if grows:
            self.cache = [k, v] if not self.cache else [torch.cat(pair, 2) for pair in zip(self.cache, (k, v), strict=True)]
            k, v = self.cache
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=not grows).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, start: int = 0, *, grows: bool = False) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(start, start + words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x, grows=grows)
        return self.head(x)


def say(number: int, text: str) -> None:
    print(number, text, flush=True)
    if PACE is not None:
        PACE.readline()


def train(steps: int, model: nn.Module, draw: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        inputs, labels = draw()
        loss = cross_entropy(model(inputs.cuda()).flatten(0, -2), labels.cuda().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LINE == 0:
            say(step, f"{loss.item():.9f}")


@torch.no_grad()
def generate(steps: int, model: Transformer) -> None:
    """So many words, in texts of ``LINE`` words each of which the device draws."""
    model.eval()
    for text in range(0, steps, LINE):
        words = torch.full((4, 1), text % WORDS, device="cuda")
        for block in model.blocks:
            block.cache = []
        said = []
        for at in range(LINE):
            words = torch.multinomial(model(words, at, grows=True)[:, -1].softmax(-1), 1)
            said.append(words)
        say(text, hashlib.sha256(torch.cat(said, 1).cpu().numpy().tobytes()).hexdigest()[:16])


def copy(steps: int) -> None:
    """Much goes to the device and comes back."""
    for step in range(0, steps, LINE):
        found = (torch.randn(1 << 22).cuda() * 2 + step).cpu()
        say(step, hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16])


def main(steps: int, work: str) -> None:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    model: nn.Module
    if work == "copy":
        copy(steps)
        return
    if work == "mlp":
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(128), nn.Linear(128, 10)).cuda()
        train(steps, model, lambda: (torch.randn(64, 64, generator=draw), torch.randint(0, 10, (64,), generator=draw)))
    elif work == "gpt":
        model = Transformer().cuda()
        train(steps, model, lambda: tuple(torch.randint(0, WORDS, (2, 8, LENGTH), generator=draw)))
    else:
        generate(steps, model := Transformer().cuda())
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "mlp")
