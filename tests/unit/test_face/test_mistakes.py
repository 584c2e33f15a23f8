"""Mistakes raise what CUDA raises, and nothing hands a device pointer to code that would follow it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wooly import errors
from wooly.errors import ForeignPointerError, QuotaExceeded


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(1, device="cuda:7"),
        lambda: torch.zeros(1, device=7),
        lambda: torch.tensor([1.0], device="cuda:7"),
        lambda: torch.zeros(1).to("cuda:7"),
        lambda: torch.zeros(1).cuda(7),
        lambda: torch.zeros_like(torch.zeros(1), device="cuda:7"),
        lambda: torch.cuda.set_device(7),
        lambda: torch.cuda.synchronize(7),
        lambda: torch.Generator("cuda:7"),
        lambda: torch.cuda.Stream(7),
    ],
)
def test_a_device_that_does_not_exist(call: Any) -> None:
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: invalid device ordinal"):
        call()


def test_properties_of_a_device_that_does_not_exist() -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(7)


def test_numpy() -> None:
    x = torch.ones(2, device="cuda")
    message = r"^can't convert cuda:0 device type tensor to numpy\. Use Tensor\.cpu\(\) to copy the tensor to host memory first\.$"
    with pytest.raises(TypeError, match=message):
        x.numpy()
    with pytest.raises(TypeError, match=message):
        np.asarray(x)
    assert x.numpy(force=True).tolist() == [1, 1]
    assert x.requires_grad_().numpy(force=True).tolist() == [1, 1]


def test_mixed_devices() -> None:
    with pytest.raises(
        RuntimeError, match="Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    ):
        torch.ones(2, device="cuda") + torch.ones(2)


# --- pointers


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.__cuda_array_interface__,
        lambda x: x.__dlpack__(),
        lambda x: x.__dlpack_device__(),
        lambda x: torch.utils.dlpack.to_dlpack(x),
        lambda x: np.from_dlpack(x),
        lambda x: int(x.data_ptr()),
        lambda x: hex(x.data_ptr()),
        lambda x: [0][x.data_ptr()],
    ],
)
def test_foreign_code_gets_no_pointer(call: Any) -> None:
    with pytest.raises(ForeignPointerError, match=r"copy the tensor to this machine first, by Tensor\.cpu\(\)"):
        call(torch.ones(2, device="cuda"))


def test_a_pointer_cannot_reach_c() -> None:
    x = torch.ones(2, device="cuda")
    with pytest.raises((TypeError, RuntimeError)):
        ctypes.c_void_p(x.data_ptr())
    with pytest.raises((ctypes.ArgumentError, TypeError, RuntimeError)):
        ctypes.string_at(x.data_ptr(), 4)


def test_pointers_tell_tensors_apart() -> None:
    a, b = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    assert a.data_ptr() == a.view(2, 2).data_ptr() != b.data_ptr()
    assert {a.data_ptr(): "a", b.data_ptr(): "b"}[b.view(2, 2).data_ptr()] == "b"
    assert a[2:].data_ptr() - a.data_ptr() == 8 and a.data_ptr() + 8 == a[2:].data_ptr()
    assert a.data_ptr() % 16 == 0 and bool(a.data_ptr()) and (a.data_ptr() < b.data_ptr()) != (b.data_ptr() < a.data_ptr())
    assert torch.ones(1).data_ptr() > 0, "the CPU's pointers are numbers"


def _installed(folder: Path, code: str) -> Any:
    """A module ``flash_kernels`` of an installed library."""
    (folder / "site-packages").mkdir()
    path = folder / "site-packages" / "flash_kernels.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("flash_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_installed_library_that_calls_c_is_refused(tmp_path: Path) -> None:
    module = _installed(tmp_path, "import ctypes as ct\n\n\ndef launch(x):\n    return ct.c_void_p(x.data_ptr())\n")
    with pytest.raises(ForeignPointerError, match=r"cannot be given to flash_kernels"):
        module.launch(torch.ones(1, device="cuda"))
    assert module.launch(torch.ones(1)).value > 0


def test_an_installed_library_tells_tensors_apart(tmp_path: Path) -> None:
    module = _installed(tmp_path, "def pointer(x):\n    return x.data_ptr()\n")
    a, b = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    assert module.pointer(a) == module.pointer(a.view(2, 2)) != module.pointer(b)
    with pytest.raises(ForeignPointerError, match=r"copy the tensor to this machine first"):
        int(module.pointer(a))


def test_a_dlpack_round_trip_on_the_device_is_the_same_memory() -> None:
    x = torch.ones(2, device="cuda")
    y = torch.from_dlpack(x)
    y += 1
    assert x.tolist() == [2, 2]


# --- errors from the node are those that CUDA programs catch


def test_out_of_memory_is_torchs() -> None:
    error = errors.from_fault("QuotaExceeded", "quota 1 GiB, used 1 GiB, asked 1 MiB")
    assert isinstance(error, torch.cuda.OutOfMemoryError) and isinstance(error, QuotaExceeded)
    assert type(error).__name__ == "OutOfMemoryError" and str(error) == "quota 1 GiB, used 1 GiB, asked 1 MiB"
    told = errors.from_fault("QuotaExceeded", "out of memory: the request for 1 MiB does not fit")
    assert str(told) == "CUDA out of memory. The request for 1 MiB does not fit"


def test_a_trap_is_a_device_side_assert() -> None:
    error = errors.from_fault("Trap", "index 7 is out of bounds", ("gather @ code 3: trap",))
    assert isinstance(error, torch.AcceleratorError) and isinstance(error, errors.DeviceAssertError)
    assert str(error) == "CUDA error: device-side assert triggered: index 7 is out of bounds\n  gather @ code 3: trap"


def test_an_unknown_fault_is_a_refusal_with_places() -> None:
    error = errors.from_fault("Unverified", "the program breaks a rule", ("shape @ code 1: no",))
    assert isinstance(error, errors.RefusedError)
    assert (error.name, error.places) == ("Unverified", ("shape @ code 1: no",)) and "shape @ code 1" in str(error)


def test_use_after_fork() -> None:
    torch.ones(1, device="cuda").sum().item()  # the session is open
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert torch.cuda._is_in_bad_fork()
            torch.manual_seed(0)  # what every data loader worker does; must not touch the device
            torch.ones(1, device="cuda")
            os.write(write, b"no error")
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == (
            "ForkError: Cannot re-initialize CUDA in forked subprocess. "
            "To use CUDA with multiprocessing, you must use the 'spawn' start method"
        )
    assert torch.ones(1, device="cuda").item() == 1, "the parent goes on"
    assert sys.exc_info() == (None, None, None)
