"""Each operation that asserts on a device, in a process of its own: an error that names it, never a value."""

# cpu: no
import subprocess
import sys

import torch

CASES = {
    "gather": "torch.arange(4.).cuda().gather(0, torch.tensor([7]).cuda())",
    "index": "torch.arange(4.).cuda()[torch.tensor([9]).cuda()]",
    "cross_entropy": "torch.nn.functional.cross_entropy(torch.randn(2, 3).cuda(), torch.tensor([0, 5]).cuda())",
    "scatter": "torch.zeros(4).cuda().scatter(0, torch.tensor([8]).cuda(), 1.0)",
    "one_hot": "torch.nn.functional.one_hot(torch.tensor([0, 9]).cuda(), 3)",
    "index_select": "torch.arange(4.).cuda().index_select(0, torch.tensor([5]).cuda())",
    "bce": "torch.nn.functional.binary_cross_entropy(torch.tensor([1.5]).cuda(), torch.tensor([1.0]).cuda())",
    "multinomial": "torch.multinomial(torch.tensor([0.5, -1.0]).cuda(), 1)",
    "assert_async": "torch._assert_async(torch.tensor(False).cuda())",
}
results = {}
for name, text in CASES.items():
    code = f"import torch\nx = {text}\nprint(x.sum().item() if x is not None else torch.ones(1).cuda().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    lines = done.stderr.strip().splitlines() or [done.stdout]
    results[name] = f"{done.returncode}: {lines[-1]}"
    print(name, results[name])
silent = [name for name, text in results.items() if text.startswith("0")]
assert not silent, f"no error from: {silent}"
torch.save(results, sys.argv[1])
