"""Scripts that use several devices of their task in one process: what they compute, and that each device has its own memory, random numbers
and session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.script import PYTHON, Script, task_called
from tests.support.stack import EmbeddedStack


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(WOOLY_DEVICES="3", WOOLY_DEVICE_VRAM_MB="256") as running:
        yield running


def run(stack: EmbeddedStack, name: str, code: str, **environment: str) -> Any:
    """What the script prints as JSON in its last line."""
    with Script(stack, name, code, **{"GPU_COUNT": "2"} | environment) as script:
        assert script.end() == 0, script.error
        return json.loads(script.output.splitlines()[-1])


TWO_STAGES = """
import copy, json, torch
from torch import nn

torch.manual_seed(0)
stages = [nn.Sequential(nn.Linear(12, 32), nn.Tanh()), nn.Sequential(nn.Linear(32, 32), nn.ReLU()), nn.Linear(32, 3)]

def train(stages, devices):
    stages = [copy.deepcopy(stage).to(device) for stage, device in zip(stages, devices)]
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        x, y = torch.randn(8, 12, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        for stage, device in zip(stages, devices):
            x = stage(x.to(device))
        loss = nn.functional.cross_entropy(x, y.to(devices[-1]))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in parameters], [str(p.grad.device) for p in parameters]

here, there, again = train(stages, ["cpu"] * 3), train(stages, DEVICES), train(stages, DEVICES)
print(json.dumps({
    "near": all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(here[1], there[1])),
    "same": there[0] == again[0] and all(torch.equal(a, b) for a, b in zip(there[1], again[1])),
    "losses": [here[0], there[0]],
    "devices": there[2][::2],
}))
"""


@pytest.mark.parametrize("devices", [["cuda:0", "cuda:1", "cuda:0"], ["cuda:1", "cuda:0", "cuda:1"], ["cuda:1"] * 3])
def test_stages_of_a_pipeline_train_as_on_the_cpu_and_alike_each_time(stack: EmbeddedStack, devices: list[str]) -> None:
    found = run(stack, f"pipeline_{'_'.join(name[-1] for name in devices)}", TWO_STAGES.replace("DEVICES", repr(devices)))
    assert found["near"] and found["same"] and found["devices"] == devices
    assert found["losses"][1] == pytest.approx(found["losses"][0], rel=1e-4)


DATA_PARALLEL = """
import copy, json, torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
x, y = torch.randn(10, 16), torch.randint(0, 4, (10,))

def train(net, x, y):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]

here = train(copy.deepcopy(net), x, y)
runs = [train(nn.DataParallel(copy.deepcopy(net).cuda()), x.cuda(), y.cuda()) for _ in range(2)]
replicas = nn.parallel.replicate(net.cuda(), [0, 1])
print(json.dumps({
    "near": all(torch.allclose(a, b, atol=1e-5) for a, b in zip(here, runs[0])),
    "same": all(torch.equal(a, b) for a, b in zip(*runs)),
    "replicas": [str(replica[0].weight.device) for replica in replicas],
    "used": [torch.cuda.max_memory_allocated(i) > 0 for i in range(2)],
}))
"""


def test_data_parallel_spreads_a_batch(stack: EmbeddedStack) -> None:
    found = run(stack, "data_parallel", DATA_PARALLEL)
    assert found == {"near": True, "same": True, "replicas": ["cuda:0", "cuda:1"], "used": [True, True]}


PLACES = """
import io, json, torch

def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

a, b = torch.arange(6.0, device="cuda:0"), torch.arange(6.0, device="cuda:1")
found = {"mixed": [refused(lambda: a + b), refused(lambda: torch.cat([a, b])), refused(lambda: a.index_select(0, b.long())),
                   refused(lambda: a.add_(b)), refused(lambda: a + b)]}
found["beside_cpu"] = refused(lambda: b + torch.ones(6)).partition(" (")[0]
found["unchanged"] = a.tolist()
with torch.cuda.device(1):
    here = [torch.ones(1, device="cuda"), torch.tensor([1.0], device="cuda"), torch.as_tensor([1.0], device="cuda"),
            a.new_tensor([1], device="cuda"), torch.arange(3, device=torch.device("cuda")),
            torch.ones(2).cuda(), torch.ones(2).to("cuda"), torch.Generator("cuda")]
    found["current"] = sorted({str(x.device) for x in here})
made = [torch.zeros_like(a, device="cuda:1"), b.new_ones(2), torch.full((2,), 3.0, device=b.device), b.double(),
        torch.tensor([1.0], device="cuda:1"), b[2:].reshape(2, 2).t(), (b > 2).nonzero(), torch.sort(b)[1], a.to("cuda:1"), a.cuda(1),
        torch.randperm(4, device="cuda:1"),
        torch.linalg.inv(torch.eye(2, device="cuda:1")), torch.special.i0e(b)]
found["made"] = sorted({str(x.device) for x in made})
copied = torch.empty(3, 2, device="cuda:1").t()
copied.copy_(a.view(2, 3))
found["copied"] = copied.tolist()
back = torch.empty(6, device="cuda:0").copy_(b * 2)
found["back"] = back.tolist()
x = torch.ones(2, device="cuda:1", requires_grad=True)
(x.to("cuda:0") * 3).sum().backward()
found["gradient"] = [x.grad.tolist(), str(x.grad.device)]
file = io.BytesIO()
torch.save({"b": b, "a": a}, file)
file.seek(0)
loaded = torch.load(file)
file.seek(0)
moved = torch.load(file, map_location="cuda:1")
found["loaded"] = [str(loaded["b"].device), str(loaded["a"].device), str(moved["a"].device), moved["a"].tolist()]
b.resize_(8)
found["resized"] = [str(b.device), str(b.untyped_storage().device), b[:6].tolist()]
torch.manual_seed(5)
found["seeded"] = torch.equal(torch.rand(4, device="cuda:0").cpu(), torch.rand(4, device="cuda:1").cpu())
torch.cuda.manual_seed(6)
found["apart"] = torch.equal(torch.rand(4, device="cuda:0").cpu(), torch.rand(4, device="cuda:1").cpu())
before = [torch.cuda.memory_allocated(i) for i in range(2)]
held = torch.zeros(1 << 20, device="cuda:1")
found["grown"] = [torch.cuda.memory_allocated(i) - n for i, n in enumerate(before)]
found["full"] = refused(lambda: torch.zeros(1 << 40, device="cuda:1")).partition(" has")[0]
found["compiled"] = torch.compile(lambda x: x.sin() + 1)(torch.zeros(2, device="cuda:1")).tolist()
graph = torch.cuda.CUDAGraph()
def capture():
    with torch.cuda.graph(graph):
        torch.ones(2, device="cuda:1") + 1
found["graph"] = refused(capture)
found["after"] = (torch.ones(2, device="cuda:1") + 1).tolist()
found["beyond"] = refused(lambda: torch.zeros(1, device="cuda:2"))
print(json.dumps(found))
"""


def test_tensors_are_made_copied_and_refused_by_device(stack: EmbeddedStack) -> None:
    found = run(stack, "places", PLACES)
    mixed = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!"
    assert found.pop("mixed") == [mixed] * 5
    assert found.pop("beside_cpu") == mixed.replace("cuda:1", "cpu").replace("cuda:0", "cuda:1")
    numbers = [float(i) for i in range(6)]
    assert found == {
        "unchanged": numbers,
        "current": ["cuda:1"],
        "made": ["cuda:1"],
        "copied": [numbers[:3], numbers[3:]],
        "back": [2 * x for x in numbers],
        "gradient": [[3.0, 3.0], "cuda:1"],
        "loaded": ["cuda:1", "cuda:0", "cuda:1", numbers],
        "resized": ["cuda:1", "cuda:1", numbers],
        "seeded": True,
        "apart": False,
        "grown": [0, 4 << 20],
        "full": "OutOfMemoryError: CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 1",
        "compiled": [1.0, 1.0],
        "graph": "AcceleratorError: CUDA error: operation failed due to a previous error during capture",
        "after": [2.0, 2.0],
        "beyond": "AcceleratorError: CUDA error: invalid device ordinal",
    }


LIKE_CUDA = """
import json, torch
from torch import nn

def to_cuda(x):
    return x.cuda()

a, b = torch.arange(6.0, device="cuda:0"), torch.arange(6.0, device="cuda:1")
found = {}
coo = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3), device="cuda:1")
table = nn.Embedding(10, 4, sparse=True, device="cuda:1")
table(torch.tensor([1, 1, 3], device="cuda:1")).sum().backward()
torch.optim.SparseAdam(table.parameters()).step()
sparse = [coo, coo.coalesce(), coo.t(), coo.clone(), coo * 2, torch.zeros_like(coo), b.to_sparse(), table.weight.grad,
          coo.unsqueeze(0).permute(2, 0, 1)]
found["sparse"] = sorted({str(part.device) for x in sparse for part in (x, x._indices(), x._values(), x.to_dense())})
found["sums"] = [coo.to_dense().tolist(), str(coo.to("cuda:0")._values().device), table.weight.grad.to_dense().sum(1).tolist()[:4]]
made = [lambda d: torch.rand_like(b, device=d), lambda d: b.new_zeros(2, device=d), lambda d: torch.ones_like(b, device=d)]
elsewhere = [make(device) for device in ("cpu", "meta", "cuda:0") for make in made]
found["elsewhere"] = [str(x.device) for x in (*elsewhere, b.new(2, device="cuda:0"))]
found["new"] = [str(x.device) for x in (b.new_tensor([1.0]), b.new([1.0]), b.new(2, 3), b.new(b))]
with torch.cuda.device(1):
    typed = [torch.cuda.FloatTensor([1.0]), torch.cuda.LongTensor(2), torch.ones(1).type(torch.cuda.HalfTensor)]
    made = [torch.tensor(1, device="cuda"), torch.as_tensor([1], device="cuda"), torch.asarray([1], device="cuda"),
            torch.sparse_coo_tensor([[0]], [1.0], (2,), device="cuda"), torch.jit.script(to_cuda)(torch.ones(1)),
            torch.compile(lambda x: x * torch.tensor([2.0, 1.0], device="cuda"), dynamic=False)(b[:2])]
    found["made"] = sorted({str(x.device) for x in made})
    found["typed"] = [str(x.device) for x in (*typed, a.type(torch.cuda.HalfTensor), torch.cuda.FloatTensor(a))]
    found["of_first"] = [str(x.device) for x in (a.new_tensor([1.0]), a.new(2), a.to_sparse() * 2, coo.to("cuda:0")._indices())]
number = torch.tensor(7.0, device="cuda:0")
filled, masked, put = b.clone(), b.clone(), b.clone()
filled.fill_(number)
masked.masked_fill_(masked > 3, number)
put[torch.tensor([1, 2], device="cuda:1")] = number
found["filled"] = [filled.tolist(), masked.tolist(), put.tolist(), b.masked_fill(b < 5, number).tolist()]
here, there = torch.cuda.Stream(), torch.cuda.Stream(device=1)
inside = []
for context in (torch.cuda.stream(there), there):
    with context:
        inside += [torch.cuda.current_device(), str(torch.ones(1, device="cuda").device), torch.cuda.current_stream() == there]
        with torch.cuda.stream(here):
            inside += [torch.cuda.current_device()]
        inside += [torch.cuda.current_device()]
found["streams"] = [inside, str(there.record_event().device), torch.cuda.current_device(),
                    torch.cuda.current_stream(1) == torch.cuda.default_stream(1)]
net = nn.DataParallel(nn.Linear(6, 2).cuda())
x = torch.randn(5, 6)
found["scattered"] = torch.allclose(net(x).cpu(), net.module(x.cuda()).cpu(), atol=1e-6)  # a batch that is on the CPU
averages, values = [torch.zeros(2, device=f"cuda:{i}") for i in range(2)], [torch.ones(2, device=f"cuda:{i}") for i in range(2)]
torch._foreach_lerp_(averages, values, 0.5)
found["lists"] = [x.tolist() for x in [*averages, *torch._foreach_mul(values, [2.0, 3.0])]]
torch._foreach_copy_(averages, [values[1] * 4, torch.full((2,), 5.0)])
found["lists"] += [x.tolist() for x in averages]
print(json.dumps(found))
"""


def test_what_cuda_does_with_the_current_device_and_with_two(stack: EmbeddedStack) -> None:
    zero, seven = [0.0, 0.0, 3.0], [7.0] * 6
    assert run(stack, "like_cuda", LIKE_CUDA) == {
        "sparse": ["cuda:1"],
        "sums": [[zero, [9.0, 0.0, 0.0]], "cuda:0", [0.0, 8.0, 0.0, 4.0]],
        "elsewhere": [*["cpu"] * 3, *["meta"] * 3, *["cuda:0"] * 4],
        "new": ["cuda:1"] * 4,
        "of_first": ["cuda:0"] * 4,
        "made": ["cuda:1"],
        "typed": ["cuda:1", "cuda:1", "cuda:1", "cuda:0", "cuda:1"],
        "filled": [seven, [0.0, 1.0, 2.0, 3.0, 7.0, 7.0], [0.0, 7.0, 7.0, 3.0, 4.0, 5.0], [*seven[:5], 5.0]],
        "streams": [[1, "cuda:1", True, 0, 1] * 2, "cuda:1", 0, True],
        "scattered": True,
        "lists": [[0.5, 0.5], [0.5, 0.5], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0], [5.0, 5.0]],
    }


COMPILED = """
import json, torch

code = torch.compile(lambda x: (torch.ones(2, device="cuda"), torch.tensor([1.0], device="cuda"), x.cuda()))
beside = torch.compile(lambda x: torch.zeros(2, device="cuda") + x)
found = []
for i in (0, 1, 0):
    with torch.cuda.device(i):
        found.append(sorted({x.device.index for x in (*code(torch.ones(1)), beside(torch.ones(2, device=i)))}))
print(json.dumps(found))
"""


def test_compiled_code_makes_tensors_on_the_device_that_is_current_when_it_is_called(stack: EmbeddedStack) -> None:
    with Script(stack, "compiled", COMPILED, PYTHON, GPU_COUNT="2") as script:  # dynamo is not imported before the device is there
        assert script.end() == 0, script.error
        assert json.loads(script.output) == [[0], [1], [0]]


def test_each_device_is_a_session_of_one_task(stack: EmbeddedStack) -> None:
    code = (
        "import json, torch\nprint(json.dumps([torch.ones(8, device=f'cuda:{i}').sum().item() for i in range(torch.cuda.device_count())]))"
    )
    assert run(stack, "three", code, GPU_COUNT="3") == [8.0] * 3
    task = task_called(stack, "three.py", lambda task: task["state"] == "completed")
    assert len(task["gpus"]) == 3


def test_only_the_device_that_is_used_has_a_session(stack: EmbeddedStack) -> None:
    code = "import json, torch\ntorch.cuda.set_device(1)\nx = torch.ones(2, device='cuda')\nprint(json.dumps([str(x.device), x.tolist()]))"
    with Script(stack, "second", code, GPU_COUNT="2") as script:
        assert script.end() == 0, script.error
        assert json.loads(script.output) == ["cuda:1", [1.0, 1.0]]
        assert script.error.count("wooly: node ") == 1, script.error


FORKED = """
import json, os, torch
torch.ones(2, device="cuda:USED").sum().item()
read, write = os.pipe()
if os.fork() == 0:
    refused = []
    for device in ("cuda:0", "cuda:1"):
        try:
            refused.append(torch.ones(2, device=device).tolist())
        except RuntimeError as error:
            refused.append(str(error)[:25])
    os.write(write, json.dumps([torch.cuda._is_in_bad_fork(), *refused]).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""


@pytest.mark.parametrize("used", ["0", "1"])
def test_a_forked_child_has_no_device_when_its_parent_used_one(stack: EmbeddedStack, used: str) -> None:
    assert run(stack, f"forked_{used}", FORKED.replace("USED", used)) == [True, *["Cannot re-initialize CUDA"] * 2]
