"""Out of memory: large, absurd and overflowing sizes are OutOfMemoryError, each survived by the session."""

# cpu: no
import sys

import torch

seen = {}
for name, shape in {"1 TiB": (1 << 38,), "4 TiB": (1 << 40,), "1 EiB": (1 << 58,), "square": (1 << 20, 1 << 20)}.items():
    try:
        torch.empty(shape, device="cuda").fill_(1.0).sum().item()
        seen[name] = "no error"
    except torch.OutOfMemoryError as error:
        seen[name] = type(error).__name__
        assert "memory" in str(error).lower()
    assert torch.ones(3, device="cuda").sum().item() == 3
try:
    torch.empty(1 << 62, device="cuda")
except RuntimeError as error:
    seen["overflow"] = type(error).__name__
kept = torch.arange(5, device="cuda")
try:
    torch.zeros(1 << 41, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
assert kept.tolist() == [0, 1, 2, 3, 4]
assert seen == {name: "OutOfMemoryError" for name in ("1 TiB", "4 TiB", "1 EiB", "square")} | {"overflow": "RuntimeError"}, seen
torch.save(seen, sys.argv[1])
