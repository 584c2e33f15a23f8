"""Mistakes raise what CUDA raises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing
import torch.utils.checkpoint

from tests.support.device import link
from wooly.counters import COUNTERS
from wooly.device.face import devices
from wooly.device.memory import MEMORY
from wooly.device.recorder import RECORDER

ROOT = Path(__file__).parents[3]


def test_mixed_devices() -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.* cuda:0 and cpu"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 2) @ torch.ones(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, torch.ones(2)])
    assert (x + torch.tensor(2.0)).tolist() == [3, 3], "a 0-dim CPU tensor is a number"
    assert (x.half() * torch.tensor(2.0)).dtype == torch.float16
    assert (torch.arange(4, device="cuda")[torch.tensor([2, 1])]).tolist() == [2, 1], "CPU indices are moved"


def test_a_device_that_does_not_exist() -> None:
    for make in (lambda: torch.ones(2, device="cuda:7"), lambda: torch.ones(2).to("cuda:7"), lambda: torch.ones(2).cuda(7)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make()


def test_writing_memory_that_overlaps() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(3, device="cuda").expand(2, 3).add_(1)
    x = torch.arange(4.0, device="cuda")
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[1:].add_(x[:-1])
    x.add_(x)
    x[:2].add_(x[2:])
    assert x.tolist() == [4, 8, 4, 6]


def test_wrong_shapes_and_types_raise_at_once_in_torchs_words() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.ones(2, device="cuda") + torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device="cuda").add_(1.5)
    with pytest.raises(IndexError):
        torch.ones(2, device="cuda").sum(3)
    for add in (lambda x, y: x.add_(y), lambda x, y: x.lerp_(y, 0.5), lambda x, y: x.masked_fill_(y > 0, 1)):
        with pytest.raises(RuntimeError, match=r"output with shape \[3\] doesn't match the broadcast shape \[5, 3\]"):
            add(torch.ones(3, device="cuda"), torch.ones(5, 3, device="cuda"))
    with pytest.raises(RuntimeError, match=r"\[3, 4, 5\]"):
        torch.addmm(torch.ones(3, 4, 5, device="cuda"), torch.ones(4, 6, device="cuda"), torch.ones(6, 5, device="cuda"))


@pytest.mark.parametrize("bias", [(3,), (1,), (4, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_bias_that_does_not_fit_a_convolution(bias: tuple[int, ...], transposed: bool) -> None:
    convolve = torch.nn.functional.conv_transpose1d if transposed else torch.nn.functional.conv1d
    x, weight = torch.ones(1, 2, 5, device="cuda"), torch.ones((2, 4, 3) if transposed else (4, 2, 3), device="cuda")
    with pytest.raises(RuntimeError, match="expected bias to be 1-dimensional with 4 elements, but got bias of size"):
        convolve(x, weight, torch.ones(bias, device="cuda"))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_without_outputs(transposed: bool) -> None:
    convolve = torch.nn.functional.conv_transpose1d if transposed else torch.nn.functional.conv1d
    with pytest.raises(RuntimeError, match="Given groups=1, expected weight to be at least 1 at dimension 0, but got weight of size"):
        convolve(torch.ones(1, 2, 5, device="cuda"), torch.ones(0, 2, 3, device="cuda"))


def test_a_convolution_that_does_not_move() -> None:
    with pytest.raises(RuntimeError, match="non-positive stride"):
        torch.nn.functional.conv1d(torch.ones(1, 2, 5, device="cuda"), torch.ones(4, 2, 3, device="cuda"), stride=0)


def test_an_index_out_of_range_shows_at_the_next_wait() -> None:
    x = torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
    try:
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            x.cpu()
        torch.ones(1, device="cuda").add_(1)
        with pytest.raises(torch.AcceleratorError):  # as on CUDA, everything after it fails too
            torch.cuda.synchronize()
    finally:
        link().forget_fault()
    assert torch.ones(1, device="cuda").item() == 1


def test_an_assert_names_the_lines_and_operations_of_the_script() -> None:
    x = torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
    try:
        with pytest.raises(RuntimeError, match=r"(?s)recorded .*test_mistakes.py:\d+.*aten::index.Tensor.*CUDA_LAUNCH_BLOCKING=1"):
            x.cpu()
    finally:
        link().forget_fault()


BLOCKING = """
import torch
from tests.support.device import switch_on
switch_on()
x, index = torch.arange(3, device="cuda"), torch.tensor([7], device="cuda")
try:
    y = x[index]
except torch.AcceleratorError as error:
    assert "recorded" in str(error) and ":7 (aten::index.Tensor)" in str(error) and "CUDA_LAUNCH_BLOCKING" not in str(error), error
else:
    raise SystemExit("it went unnoticed")
"""


def test_with_launch_blocking_an_error_is_raised_at_its_line() -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT), "CUDA_LAUNCH_BLOCKING": "1"}
    done = subprocess.run([sys.executable, "-c", BLOCKING], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("numel", [1 << 45, 1 << 60])
def test_more_than_the_device_has_is_refused_at_the_call(numel: int) -> None:
    kept = torch.ones(2, device="cuda")
    kept.sum().item()
    before = MEMORY.allocated
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate .* GPU 0 has a total capacity of 16.00 GiB"):
        torch.empty(numel, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.zeros(numel, device="cuda", dtype=torch.int8)
    assert MEMORY.allocated == before and (kept * 2).tolist() == [2, 2]


def test_a_mistake_in_shapes_costs_no_transfer() -> None:
    a = torch.ones(2, 3, device="cuda")
    torch.cuda.synchronize()
    fetched = COUNTERS.fetch_bytes
    for call, words in (
        (lambda: a @ a, "cannot be multiplied"),
        (lambda: torch.cat([a, torch.ones(3, 4, device="cuda")]), "Sizes of tensors must match"),
        (lambda: a.sum(3), "Dimension out of range"),
        (lambda: torch.nn.functional.linear(a, torch.ones(4, 5, device="cuda")), "cannot be multiplied"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=words):
            call()
    assert COUNTERS.fetch_bytes == fetched


def test_tensors_sent_to_another_process_are_copies() -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    x, weight = torch.arange(6.0, device="cuda").view(2, 3).t(), torch.nn.Parameter(torch.ones(2, device="cuda"))
    with pytest.warns(UserWarning, match="is copied"):
        queue.put({"rank": 3, "values": [x, weight]})
        got = queue.get(timeout=60)
    copy, parameter = got["values"]
    assert got["rank"] == 3 and copy.is_cuda and copy.stride() == x.stride() and type(parameter) is torch.nn.Parameter
    x.zero_()
    assert copy.tolist() == [[0, 3], [1, 4], [2, 5]] and parameter.requires_grad and parameter.tolist() == [1, 1]
    queue.close()
    here, there = multiprocessing.Pipe()
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        here.send(weight * 2)
    with pytest.raises(RuntimeError, match="CUDA storage"):
        here.send(x.untyped_storage())
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("text", "count", "task", "first"),
    [
        ("", 0, 2, None),
        ("-1", 0, 1, None),
        ("0", 1, 4, 0),
        ("3,1", 2, 4, 3),
        ("1,7,0", 1, 4, 1),
        ("4", 0, 4, None),
        ("0,0", 1, 4, 0),
        ("GPU-8", 0, 1, None),
    ],
)
def test_visible_devices(text: str, count: int, task: int, first: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    devices.set_count(task)
    try:
        assert torch.cuda.device_count() == count and torch.cuda.is_available() == (count > 0)
        if first is not None:
            assert devices.chosen() == first
            assert torch.ones(1, device="cuda").item() == 1
            return
        for call in (
            lambda: torch.ones(1).cuda(),
            lambda: torch.ones(1).to("cuda"),
            lambda: torch.empty(1, device="cuda"),
            torch.cuda.init,
        ):
            with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
                call()
    finally:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        devices.set_count(1)


def test_out_of_memory_names_quota_use_and_request() -> None:
    torch.cuda.synchronize()
    kept = torch.empty(1 << 18, device="cuda")
    MEMORY.limit(MEMORY.allocated + (2 << 20))
    try:
        before = MEMORY.allocated
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 4.00 MiB. The quota of this task is .* are in use"):
            torch.empty(1 << 20, device="cuda")
        assert MEMORY.allocated <= before, "a refused request takes nothing"
        half = torch.empty(1 << 18, device="cuda")
        assert half.numel() == kept.numel()
    finally:
        MEMORY.limit(0)


def test_memory_counts() -> None:
    RECORDER.synchronize()
    before = MEMORY.allocated
    MEMORY.reset_peak()
    x = torch.zeros(1000, device="cuda")
    y = x[1:]
    assert MEMORY.allocated - before == 4000
    z = x + 1
    del x, z
    assert MEMORY.allocated - before == 4000, "a view holds its buffer"
    del y
    assert MEMORY.allocated == before and MEMORY.peak - before == 8000


FORK = """
import os, sys, torch
from tests.support.device import switch_on
switch_on()
kept = torch.ones(2, device="cuda")
kept.sum().item()
refused = 0
pid = os.fork()
if pid == 0:
    for use in (lambda: torch.ones(2, device="cuda"), lambda: kept.add_(1), lambda: kept.cpu(), lambda: kept + 1):
        try:
            use()
        except RuntimeError as error:
            refused += "Cannot re-initialize CUDA in forked subprocess" in str(error)
    del kept
    os._exit(refused)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 4, status
assert (kept + 1).tolist() == [2, 2]
"""


def test_a_forked_child_is_refused_and_leaves_the_parent_whole() -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("torch.multinomial(x.reshape(1, 2, 3), 2)", "prob_dist must be 1 or 2 dim"),
        ("torch.multinomial(x.long(), 2)", "only supports floating-point dtypes"),
        ("torch.multinomial(x, 0)", "cannot sample n_sample <= 0"),
        ("torch.multinomial(x, 7)", "cannot sample n_sample > prob_dist"),
        ("torch.multinomial(x, 2, out=x.clone())", "multinomial expects Long tensor out"),
        ("torch.nn.functional.gelu(x, approximate='other')", "approximate argument must be either"),
        ("x.masked_scatter(x.byte(), x)", "only supports boolean masks"),
        ("torch.native_group_norm(x.expand(4, 6)[:, ::2], None, None, 4, 3, 1, 1, 0.1)", "contiguous"),
        ("torch.arange(0, 3, 0.5, out=x.long())", "step must be nonzero"),
        ("torch.masked_select(x, x > 0, out=x)", "unsupported operation"),
        ("torch.gather(x, 0, x.long(), out=x)", "unsupported operation"),
        ("torch.gather(x, 0, x.long(), out=x.double())", "Expected out tensor to have dtype float, but got double instead"),
        ("torch.mm(x[None], x[:, None], out=x.double())", "Expected out tensor to have dtype"),
        ("torch.aminmax(x, dim=0, out=(x.double(), x.double()))", "Expected out tensor to have dtype"),
        ("torch.complex(x, x, out=x.to(torch.complex128))", "Expected object of scalar type ComplexFloat but got"),
    ],
)
def test_arguments_that_torchs_kernels_check_and_its_meta_kernels_do_not(call: str, message: str) -> None:
    for device in ("cpu", "cuda"):
        with pytest.raises((RuntimeError, ValueError), match=message):
            eval(call, {"torch": torch, "x": torch.ones(6, device=device)})


def test_a_factory_takes_out_and_device_together() -> None:
    out = torch.empty(3, device="cuda")
    assert torch.ones(3, out=out, device="cuda") is out
    assert out.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(RuntimeError, match="out parameter"):
        torch.ones(3, out=torch.empty(3), device="cuda")


@pytest.mark.parametrize(("n", "n_source", "dtype"), [(0, 0, torch.int64), (0, 1, torch.int64), (3, 2, torch.int64), (3, 1, torch.int32)])
def test_put_refuses_at_the_call_what_torch_refuses(n: int, n_source: int, dtype: torch.dtype) -> None:
    raised = []
    for device in ("cpu", "cuda"):
        with pytest.raises((IndexError, RuntimeError)) as caught:
            torch.ones(n, device=device).put_(torch.zeros(1, dtype=dtype, device=device), torch.ones(n_source, device=device))
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


def test_channels_that_do_not_fit_a_transposed_convolution_after_calls_of_many_sizes() -> None:
    convolve = torch.nn.functional.conv_transpose2d
    for n in range(2, 14):
        convolve(torch.ones(1, n, 5, 3, device="cuda"), torch.ones(n, 2, 3, 3, device="cuda"))
    for n_channels, n_weights in ((4, 2), (2, 4), (0, 2)):
        for device in ("cpu", "cuda"):
            with pytest.raises(RuntimeError, match=f"to have {n_weights} channels, but got {n_channels} channels instead"):
                convolve(torch.ones(1, n_channels, 5, 3, device=device), torch.ones(n_weights, 2, 3, 3, device=device))


@pytest.mark.parametrize(
    "change",
    [
        "x[i] = torch.ones(3, 4, device=d)",
        "x[i, i] = torch.ones(3, device=d)",
        "x[:, i] = torch.ones(2, 3, device=d)",
        "x.view(3, 2, 2)[i, :, i] = torch.ones(3, 2, device=d)",
        "x.index_put_((i,), torch.ones(2, 1, 4, device=d), accumulate=True)",
        "torch.index_put(x, (i,), torch.ones(3, device=d))",
        "x[m] = torch.ones(2, 5, device=d)",
        "x[:, x[0] == 0] = torch.ones(2, 4, device=d)",
        "x.index_put_((m,), torch.ones(1, 3, 4, device=d))",
    ],
)
def test_values_that_do_not_fit_what_is_indexed(change: str) -> None:
    for device in ("cpu", "cuda"):
        x = torch.zeros(3, 4, device=device)
        given = {"torch": torch, "d": device, "x": x, "i": torch.tensor([0, 1], device=device), "m": x[:, 0] == 0}
        with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape \[.*\] cannot be broadcast to"):
            exec(change, given)
        assert not x.any()


def test_sizes_that_no_number_of_bytes_can_say_are_not_a_lack_of_memory() -> None:
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError, match="Storage size calculation overflowed") as caught:
            torch.empty(1 << 62, device=device)
        assert not isinstance(caught.value, torch.OutOfMemoryError)


def _refuse(*_: object) -> None:
    raise KeyError("raised in a hook")


def _by_tensor_hook(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(_refuse)
    return y


def _by_leaf_hook(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(_refuse)
    return x * 2


def _by_accumulation_hook(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(_refuse)
    return x * 2


def _by_node_hook(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(_refuse)
    return y


def _by_module_hook(x: torch.Tensor) -> torch.Tensor:
    module = torch.nn.Tanh()
    module.register_full_backward_hook(_refuse)
    result: torch.Tensor = module(x * 2)
    return result


def _by_saved_tensor(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, _refuse):
        return x.exp()


def _by_checkpoint(x: torch.Tensor) -> torch.Tensor:
    calls = []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x.exp() if len(calls) == 1 else _refuse()  # type: ignore[return-value]

    result: torch.Tensor = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
    return result


@pytest.mark.parametrize(
    "made",
    [_by_tensor_hook, _by_leaf_hook, _by_accumulation_hook, _by_node_hook, _by_module_hook, _by_saved_tensor, _by_checkpoint],
    ids=lambda made: made.__name__[4:],
)
def test_what_a_hook_raises_in_a_backward_pass_is_raised_by_it(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch called into Python while the exception was on its way, and ended the process."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(KeyError, match="raised in a hook"):
        made(x).sum().backward()
    assert (x.detach() + 1).tolist() == [2, 2, 2]
