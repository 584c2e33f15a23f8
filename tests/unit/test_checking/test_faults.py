"""WOOLY_CHECK=cpu finds planted faults: at the right line, with a script that makes the call again.

Each program runs in a process of its own, because kernels are wrapped when the device is switched on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.checking import run


@dataclass(frozen=True)
class Case:
    """A lowering broken by ``fault`` (statements; LOWERINGS and replace are there), and a script in which line ``line`` meets it."""

    name: str
    fault: str
    script: str
    line: int
    #: Parts of the error's text, apart from the line.
    says: tuple[str, ...]


_WRONG = """
from dataclasses import replace
from wooly.device.lowering import LOWERINGS

def wrong(name, change):
    entry = LOWERINGS[name]
    def fn(t, *args, **kwargs):
        results = entry.fn(t, *args, **kwargs)
        return change(t, results)
    LOWERINGS[name] = replace(entry, fn=fn)

def add_one(t, result):
    return t.map("add", result, 1.0)
"""

CASES = [
    Case(
        "functional",
        "wrong('aten::mul.Tensor', add_one)",
        "import torch\nx = torch.arange(6.0, device='cuda').reshape(2, 3)\ny = x + 1\nz = y * 2.5\nprint(z.sum())\n",
        4,
        ("aten::mul.Tensor", "z = y * 2.5", "self=float32[2, 3]", "6 of 6 elements", "first at (0, 0)", "device gives 3.5, the CPU 2.5"),
    ),
    Case(
        "in place on a view",
        "wrong('aten::mul.Tensor', add_one)",
        "import torch\nx = torch.ones(4, 6, device='cuda')\nv = x[1::2, ::3]\nv.mul_(3)\nprint(x)\n",
        4,
        ("aten::mul_", "v.mul_(3)", "strides (12, 3)", "offset 6"),
    ),
    Case(
        "out=",
        "wrong('aten::add.Tensor', add_one)",
        "import torch\nx = torch.ones(3, device='cuda')\ny = torch.empty(3, device='cuda')\ntorch.add(x, x, out=y)\n",
        4,
        ("aten::add.out", "torch.add(x, x, out=y)"),
    ),
    Case(
        "backward",
        "wrong('aten::threshold_backward', add_one)",
        "import torch\nx = torch.ones(3, device='cuda', requires_grad=True)\ny = torch.relu(x)\nloss = y.sum()\nloss.backward()\n",
        5,
        ("aten::threshold_backward", "in backward of ReluBackward0", ":3 in <module>: y = torch.relu(x)"),
    ),
    Case(
        "optimizer",
        "wrong('aten::_foreach_sqrt', lambda t, results: [add_one(t, r) for r in results])",
        "import torch\np = torch.nn.Parameter(torch.ones(3, device='cuda'))\no = torch.optim.Adam([p])\n"
        "p.grad = torch.ones_like(p)\no.step()\nprint(p)\n",
        5,
        ("sqrt", "o.step()"),
    ),
    Case(
        "index that names nothing",
        "wrong('aten::max.dim', lambda t, r: [r[0], t.map('add', r[1], 1)])",
        "import torch\nx = torch.tensor([[1., 3., 2.]], device='cuda')\nprint(x.max(1))\n",
        3,
        ("aten::max.dim", "x.max(1)"),
    ),
    Case(
        "dropout that scales wrongly",
        "wrong('aten::native_dropout', lambda t, r: [t.map('mul', r[0], 1.25), r[1]])",
        "import torch\ntorch.manual_seed(3)\nx = torch.ones(100, device='cuda', requires_grad=True)\n"
        "y = torch.nn.functional.dropout(x, 0.5)\n",
        4,
        ("aten::native_dropout", "Dropout: zero"),
    ),
    Case(
        "a whole whose parts are right",
        "import wooly.device.attention as attention\n"
        "kept = attention._fusable\n"
        "undo.append(lambda: setattr(attention, '_fusable', kept))\n"
        "attention._fusable = lambda query, *others: bool(query.mul_(2).dim() == 0)\n",
        "import torch\nq = torch.ones(1, 2, 3, 4, device='cuda')\nk = torch.arange(24.0).reshape(1, 2, 3, 4).cuda()\n"
        "y = torch.nn.functional.scaled_dot_product_attention(q, k, k, dropout_p=0.5)\n",
        4,
        ("aten::scaled_dot_product_attention", "dropout_p=1e-12"),
    ),
    Case(
        "beside the view",
        "from tests.support.loopback import _ReferenceMemory as memory\n"
        "run = memory.run\n"
        "def spills(self, verified, scalars, handles):\n"
        "    trap = run(self, verified, scalars, handles)\n"
        "    if len(handles) == 1: self._buffers[handles[0]][0] ^= 1\n"
        "    return trap\n"
        "undo.append(lambda: setattr(memory, 'run', run))\n"
        "memory.run = spills\n",
        "import torch\nx = torch.arange(12.0).cuda()\nx[4:].mul_(3)\n",
        3,
        ("aten::mul_", "bytes beside the tensors of the call: 1 of 48 elements differ, first at (0,): the device gives 1, the CPU 0"),
    ),
    Case(
        "wrong type of error",
        "wrong('aten::mm', lambda t, r: (_ for _ in ()).throw(ValueError('no')))",
        "import torch\nx = torch.ones(3, 3, device='cuda')\nx @ x\n",
        3,
        ("aten::mm", "raises ValueError"),
    ),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By case: what the checked run says, and what the script it wrote does with and without the fault."""
    folder = tmp_path_factory.mktemp("check")
    scripts = [folder / f"case{i}.py" for i in range(len(CASES))]
    for path, case in zip(scripts, CASES, strict=True):
        path.write_text(case.script)
    faults = [{"script": str(path), "fault": _WRONG + case.fault} for path, case in zip(scripts, CASES, strict=True)]
    whole = [{"script": str(path)} for path in scripts]
    ends = run([*whole, *faults], "--check", str(folder / "out"))
    clean, checked = ends[: len(CASES)], ends[len(CASES) :]
    written = [re.search(r"script: (\S+)", end["error"]) for end in checked]
    again = [str(match[1]) if match else str(scripts[0]) for match in written]
    ends = run([{"script": s} for s in again] + [{"script": s, "fault": f["fault"]} for s, f in zip(again, faults, strict=True)])
    return {
        case.name: {"script": scripts[i], "clean": clean[i], "checked": checked[i], "mended": ends[i], "broken": ends[len(CASES) + i]}
        for i, case in enumerate(CASES)
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_fault_is_found(case: Case, found: dict[str, dict[str, Any]]) -> None:
    ends = found[case.name]
    assert ends["clean"]["code"] == 0, ends["clean"]["error"]
    _, _, error = ends["checked"]["error"].partition("wooly.errors.CheckFailed: ")
    assert error, ends["checked"]
    for text in (f"{ends['script']}:{case.line} in <module>", *case.says):
        assert text in error, f"{text!r} not in\n{error}"
    assert ends["broken"]["code"] == 1 and "DIFFERS" in ends["broken"]["printed"], ends["broken"]
    assert ends["mended"]["code"] == 0 and "agrees" in ends["mended"]["printed"], ends["mended"]
