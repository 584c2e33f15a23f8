"""Random numbers: seeds repeat, states are kept, generators are separate, supports and moments are right."""

# cpu: no
import sys

import torch

torch.manual_seed(3)
a = torch.randn(8, device="cuda")
torch.manual_seed(3)
assert torch.equal(a, torch.randn(8, device="cuda"))
state = torch.cuda.get_rng_state()
b = torch.rand(5, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(b, torch.rand(5, device="cuda")) and not torch.equal(b, torch.rand(5, device="cuda"))
with torch.random.fork_rng(devices=[0]):
    torch.randn(4, device="cuda")
g = torch.Generator("cuda").manual_seed(7)
assert torch.equal(torch.randint(9, (6,), device="cuda", generator=g), torch.randint(9, (6,), device="cuda", generator=g.manual_seed(7)))
n = 20000
checks = {
    "normal": (torch.randn(n, device="cuda"), 0.0, 1.0),
    "uniform": (torch.rand(n, device="cuda"), 0.5, 12**-0.5),
    "bernoulli": (torch.empty(n, device="cuda").bernoulli_(0.2), 0.2, 0.4),
    "exponential": (torch.empty(n, device="cuda").exponential_(2.0), 0.5, 0.5),
    "poisson": (torch.poisson(torch.full((n,), 3.0, device="cuda")), 3.0, 3**0.5),
    "dropout": (torch.nn.functional.dropout(torch.ones(n, device="cuda"), 0.25), 1.0, 3**-0.5),
}
for name, (x, mean, deviation) in checks.items():
    assert abs(x.mean().item() - mean) < 0.05 and abs(x.std().item() - deviation) < 0.05, name
p = torch.randperm(100, device="cuda")
assert sorted(p.tolist()) == list(range(100))
m = torch.multinomial(torch.tensor([0.0, 1.0, 3.0], device="cuda"), 4000, replacement=True)
assert abs((m == 2).float().mean().item() - 0.75) < 0.05 and m.min().item() == 1
torch.save({"ok": True}, sys.argv[1])
