"""Operations without a lowering: right, visible, and refusable."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from wooly.device import fallback
from wooly.device.memory import MEMORY
from wooly.device.recorder import RECORDER, stats
from wooly.errors import ForeignPointerError, UnsupportedOperation


def matrix() -> torch.Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]])


def test_a_fallback_is_right_and_counted_and_warns_once() -> None:
    fallback._warned.clear()
    before = stats()["fallbacks"].get("aten::linalg_eig", 0)
    with pytest.warns(UserWarning, match="aten::linalg_eig runs on the CPU"):
        ours = torch.linalg.eig(matrix().to("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.linalg.eig(matrix().to("cuda"))
    cpu = torch.linalg.eig(matrix())
    assert ours.eigenvalues.device.type == "cuda"
    torch.testing.assert_close(ours.eigenvalues.cpu(), cpu.eigenvalues)
    assert stats()["fallbacks"]["aten::linalg_eig"] == before + 2


def test_fallback_can_be_forbidden() -> None:
    fallback.allow_cpu(False)
    try:
        with pytest.raises(NotImplementedError, match=r"aten::linalg_eigvals|aten::_linalg_eigvals"):
            torch.linalg.eigvals(matrix().to("cuda"))
        with pytest.raises(UnsupportedOperation, match="WOOLY_CPU_FALLBACK=0"):
            torch.linalg.eigvals(matrix().to("cuda"))
        with pytest.raises(RuntimeError, match="reduction dim"):
            torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    finally:
        fallback.allow_cpu(True)


def test_a_mutating_fallback_writes_its_arguments() -> None:
    x = matrix().to("cuda")
    out = torch.empty(0, device="cuda")
    torch.linalg.matrix_exp(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.special.airy_ai(x, out=out)
    torch.testing.assert_close(out.cpu(), torch.special.airy_ai(matrix()))


def test_no_numbers_of_a_type_that_cannot_be_sorted_are_in_no_set() -> None:
    none = torch.ones(4, 2, 0, dtype=torch.complex32, device="cuda")
    assert torch.isin(none, none).size() == (4, 2, 0)
    with pytest.raises(NotImplementedError, match="isin_default_cpu"):
        torch.isin(torch.ones(3, dtype=torch.complex32, device="cuda"), none)


def test_float8_is_carried_and_converted() -> None:
    x = torch.tensor([1.0, 2.5, -3.0])
    ours = x.to("cuda").to(torch.float8_e4m3fn)
    assert torch.equal(ours.float().cpu(), x.to(torch.float8_e4m3fn).float())


def test_data_dependent_sizes_wait_once() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="cuda")
    waits = RECORDER.counters.waits
    found = x.nonzero()
    assert RECORDER.counters.waits == waits + 1
    assert found.tolist() == [[0, 1], [1, 0]] and x[x > 1].tolist() == [2, 3]
    waits = RECORDER.counters.waits
    x[x > 1] = 0
    assert RECORDER.counters.waits == waits, "writing by a mask needs no wait"
    assert x.unique().tolist() == [0]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex32], ids=str)
def test_indices_of_nonzero_elements_are_laid_out_by_columns(dtype: torch.dtype) -> None:
    x = torch.ones(4, 3, dtype=dtype)
    assert x.to("cuda").nonzero().stride() == x.nonzero().stride() == (1, 12)


@pytest.fixture(scope="module")
def foreign() -> Iterator[Any]:
    """Operators outside aten: one with a kernel for the CPU, one that writes its argument, one for CUDA in Python, one with none."""
    library = torch.library.Library("wooly_test_foreign", "DEF")
    library.define("twice(Tensor x, *, float by=2.0) -> Tensor")
    library.define("clear_(Tensor(a!) x) -> Tensor(a!)")
    library.define("triple(Tensor x) -> Tensor")
    library.define("nothing(Tensor x) -> Tensor")
    library.define("pack(Tensor x) -> Tensor")
    library.define("fold(Tensor x) -> Tensor")
    library.impl("twice", lambda x, *, by=2.0: x * by, "CPU")
    library.impl("clear_", lambda x: x.zero_(), "CPU")
    library.impl("triple", lambda x: x * 3, "CUDA")
    library.define("scale_(Tensor(a!) x, int by, bool late=False) -> ()")
    library.define("lonely(Tensor x) -> Tensor")
    library.impl("scale_", _by_pointer, "CUDA")
    library.impl("scale_", lambda x, by, late=False: [x.mul_(by)].clear(), "CPU")
    library.impl("lonely", lambda x: x.__cuda_array_interface__, "CUDA")
    library.impl("pack", lambda x: x.to_sparse(), "CPU")
    library.impl("fold", lambda x: x.to_mkldnn(), "CPU")
    yield torch.ops.wooly_test_foreign
    library._destroy()


def _by_pointer(x: torch.Tensor, by: int, late: bool = False) -> None:
    """A kernel for CUDA of a compiled library. ``late``: it has changed its argument before it asks for the pointer."""
    if late:
        x.add_(1)
    x.__cuda_array_interface__  # noqa: B018  # raises


def test_where_a_kernel_for_cuda_follows_a_pointer_one_for_the_cpu_stands_in(foreign: Any) -> None:
    """One in Python runs on the device; none does where something was changed already."""
    before = dict(stats()["fallbacks"])
    x = matrix().to("cuda")
    foreign.scale_(x, 3)
    assert torch.equal(x.cpu(), matrix() * 3) and stats()["fallbacks"] == before
    with pytest.raises(ForeignPointerError):
        foreign.scale_(x, 3, late=True)
    assert torch.equal(x.cpu(), matrix() * 3 + 1)
    with pytest.raises(ForeignPointerError):
        foreign.lonely(x)


def test_operators_of_other_namespaces_run_on_the_cpu_and_are_counted(foreign: Any) -> None:
    fallback._warned.clear()
    before = stats()["fallbacks"].get("wooly_test_foreign::twice", 0)
    x = matrix().to("cuda")
    with pytest.warns(UserWarning, match="wooly_test_foreign::twice runs on the CPU"):
        doubled = foreign.twice(x)
    assert doubled.device.type == "cuda"
    assert torch.equal(doubled.cpu(), matrix() * 2)
    assert torch.equal(foreign.twice(x, by=0.5).cpu(), matrix() / 2)
    assert stats()["fallbacks"]["wooly_test_foreign::twice"] == before + 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert foreign.clear_(x) is x
    assert torch.equal(x.cpu(), torch.zeros(2, 2))


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_for_cuda_of_one_of_torchs_operators_replaces_ours() -> None:
    x = matrix() - 2
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("aten::gelu", lambda x, approximate="none": torch.relu(x), "CUDA")
        assert torch.equal(torch.nn.functional.gelu(x.cuda()).cpu(), x.relu())
        assert not torch.equal(torch.nn.functional.gelu(x), x.relu())
    finally:
        library._destroy()
    torch.testing.assert_close(torch.nn.functional.gelu(x.cuda()).cpu(), torch.nn.functional.gelu(x))


def test_a_python_kernel_for_cuda_is_called(foreign: Any) -> None:
    before = dict(stats()["fallbacks"])
    tripled = foreign.triple(matrix().to("cuda"))
    assert tripled.device.type == "cuda"
    assert torch.equal(tripled.cpu(), matrix() * 3)
    assert stats()["fallbacks"] == before
    with torch.inference_mode():  # whose tensors have no version
        assert torch.equal(foreign.triple(matrix().to("cuda")).cpu(), matrix() * 3)
        x = matrix().to("cuda")
        with pytest.raises(ForeignPointerError):
            foreign.scale_(x, 3)


def test_an_operator_without_any_kernel_is_refused_in_one_line(foreign: Any) -> None:
    with pytest.raises(
        UnsupportedOperation, match="wooly_test_foreign::nothing has no kernel for this device and none for the CPU"
    ) as caught:
        foreign.nothing(matrix().to("cuda"))
    assert "\n" not in str(caught.value)


def test_a_result_in_another_layout_is_one_of_the_device_or_refused(foreign: Any) -> None:
    assert foreign.pack(matrix().to("cuda")).is_cuda
    with pytest.raises(UnsupportedOperation, match=r"wooly_test_foreign::fold: .* _mkldnn"):
        foreign.fold(matrix().to("cuda"))


def test_quantized_tensors_are_refused_in_one_line() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedOperation, match="quantized") as caught:
            torch.quantize_per_tensor(matrix().to("cuda"), 0.1, 0, torch.qint8)
    assert "\n" not in str(caught.value)


def test_fake_quantisation_is_computed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = torch.fake_quantize_per_tensor_affine(matrix().to("cuda"), 0.3, 0, -128, 127)
    torch.testing.assert_close(ours.cpu(), torch.fake_quantize_per_tensor_affine(matrix(), 0.3, 0, -128, 127))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_are_resized_as_on_the_cpu(mode: str) -> None:
    """torch's kernels interpolate bytes in fixed point; its decompositions do not."""
    x = torch.arange(2 * 3 * 8 * 9).reshape(2, 3, 8, 9).remainder(251).to(torch.uint8)
    ours = torch.nn.functional.interpolate(x.cuda(), (13, 7), mode=mode)
    assert torch.equal(ours.cpu(), torch.nn.functional.interpolate(x, (13, 7), mode=mode))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.nn.functional.max_pool2d(x, 2),
        lambda x: torch.nn.functional.max_pool2d(x[:, :, ::2], 2, return_indices=True)[1],
        lambda x: x.chalf(memory_format=torch.channels_last),
        lambda x: x.contiguous().chalf(memory_format=torch.channels_last),
        lambda x: x.chalf(),
    ],
)
def test_substitutes_keep_the_memory_format(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch's decompositions do not."""
    x = torch.arange(2 * 3 * 8 * 6, dtype=torch.int32).reshape(2, 3, 8, 6).contiguous(memory_format=torch.channels_last)
    ours, expected = call(x.cuda()), call(x)
    assert (ours.dtype, ours.stride()) == (expected.dtype, expected.stride()) and ours.tolist() == expected.tolist()


def test_an_out_form_that_also_writes_arguments() -> None:
    def run(device: str) -> list[torch.Tensor]:
        x = torch.arange(24.0, device=device).reshape(2, 3, 4)
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        outs = [torch.empty(0, device=device) for _ in range(3)]
        torch.ops.aten._native_batch_norm_legit.out(
            x, None, None, mean, var, True, 0.5, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2]
        )
        return [mean, var, *outs]

    for ours, expected in zip(run("cuda"), run("cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), expected)


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda x, c: x.masked_fill(x > 0, c),
    "masked_fill_": lambda x, c: x.clone().masked_fill_(x > 0, c),
    "index_fill": lambda x, c: x.index_fill(0, torch.tensor([1], device=x.device), c),
    "copysign": lambda x, c: x.copysign(c),
    "complex": lambda x, c: torch.complex(x, c),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_in_a_cpu_tensor_is_used_on_the_device(name: str) -> None:
    x, c = matrix() - 2, torch.tensor(-3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an operation on the CPU
        before = dict(stats()["fallbacks"])
        ours = NUMBERS[name](x.to("cuda"), c).cpu()
    assert stats()["fallbacks"] == before
    torch.testing.assert_close(ours, NUMBERS[name](x, c))


@pytest.mark.parametrize(
    "call",
    [
        lambda n: torch.ones(n, device="cuda")[torch.ones(n, device="cuda") > 0],
        lambda n: torch.ones(n, device="cuda") + torch.ones(n + 1, device="cuda"),
        lambda n: torch.ones(n, device="cuda").normal_(0, -1),
    ],
    ids=["data decides the size", "sizes do not fit", "a number is refused"],
)
def test_what_a_call_was_given_is_let_go(call: Callable[[int], Any]) -> None:
    gc.collect()
    before = MEMORY.allocated
    for n in (1001, 1002):
        with suppress(RuntimeError):
            call(n)
    gc.collect()
    assert MEMORY.allocated == before
