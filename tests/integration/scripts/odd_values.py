"""Numbers that once ended a session: each call gives what the CPU gives, in one session that goes on."""

import sys

import torch

INTS, NONE = torch.tensor([1, 2, 3]), torch.empty(0, 3, 3)
CALLS = {
    "isnan of ints": lambda move: torch.isnan(move(INTS)),
    "isinf of bools": lambda move: torch.isinf(move(INTS) > 1),
    "isposinf of ints": lambda move: torch.isposinf(move(INTS)),
    "isneginf of ints": lambda move: torch.isneginf(move(INTS)),
    "signbit of bools": lambda move: torch.signbit(move(INTS) > 1),
    "any of nothing": lambda move: (lambda x: x[x > 5].any())(move(INTS)),
    "all of nothing": lambda move: (lambda x: (x[x > 5] > 0).all())(move(INTS)),
    "inv of nothing": lambda move: torch.linalg.inv(move(NONE)),
    "cholesky of nothing": lambda move: torch.linalg.cholesky(move(NONE)),
    "amax of bools": lambda move: move(torch.zeros(3, dtype=torch.bool)).scatter_reduce(0, move(INTS) - 1, move(INTS) > 1, "amax"),
    "amin of bools": lambda move: move(torch.ones(3, dtype=torch.bool)).scatter_reduce(0, move(INTS) - 1, move(INTS) > 1, "amin"),
    "lerp far beyond": lambda move: torch.lerp(move(torch.ones(3)), move(torch.zeros(3)), 2**64 - 1),
    "a factor that wraps": lambda move: torch.add(move(INTS), 2**62, alpha=8),
    "an int above i64": lambda move: move(INTS) + 2**63,
    "a number of NumPy": lambda move: move(torch.ones(3)) * __import__("numpy").float32(2.5),
    "a complex number": lambda move: move(torch.ones(3)) * 2j,
    "infinity": lambda move: move(torch.ones(3)) * float("-inf"),
}
for name, call in CALLS.items():
    want, have = call(lambda x: x), call(lambda x: x.cuda())
    assert have.dtype == want.dtype and have.shape == want.shape, name
    assert torch.equal(have.cpu(), want), f"{name}: {have.tolist()}, not {want.tolist()}"

with torch.autograd.detect_anomaly(check_nan=True):
    w = torch.ones(3, device="cuda", requires_grad=True)
    (w * 2).sum().backward()
assert w.grad.tolist() == [2, 2, 2]

model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
model, image = model.eval().cuda(), torch.randn(2, 3, 8, 8, device="cuda")
traced = torch.jit.trace(model, image)
assert torch.equal(traced(image), model(image))
assert torch.equal(traced(image[:1]), model(image[:1])), "sizes are not baked in"
torch.save({}, sys.argv[1])
print("in one session")
