"""Mistakes, and what CUDA says to them. Runs only where there is a device."""

import os
import sys

import torch

said = {}


def attempt(name, call, kind, *words):
    try:
        call()
    except kind as error:
        text = str(error)
        assert all(word in text for word in words), f"{name}: {text!r}"
        said[name] = text.splitlines()[0]
        return
    raise AssertionError(f"{name} was not refused")


on_device, on_cpu = torch.ones(3, device="cuda"), torch.ones(3)
attempt("mixed", lambda: on_device + on_cpu, RuntimeError, "same device", "cuda:0", "cpu")
attempt("mixed_mm", lambda: torch.ones(2, 3, device="cuda") @ torch.ones(3, 2), RuntimeError, "same device")
attempt("ordinal", lambda: torch.ones(1, device="cuda:7"), RuntimeError, "invalid device ordinal")
attempt("ordinal_to", lambda: on_cpu.to("cuda:7"), RuntimeError, "invalid device ordinal")
attempt("numpy", lambda: on_device.numpy(), TypeError, "cuda:0", "cpu()")
attempt("overlap", lambda: torch.zeros(3, device="cuda").expand(2, 3).add_(1), RuntimeError, "single memory location")
attempt("shape", lambda: torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda"), RuntimeError, "2x3")
attempt("dtype", lambda: torch.ones(2, dtype=torch.int64, device="cuda").add_(1.5), RuntimeError, "can't be cast")
attempt("memory", lambda: torch.empty(1 << 44, device="cuda"), torch.cuda.OutOfMemoryError, "memory")
attempt("pointer", lambda: on_device.__cuda_array_interface__, (TypeError, RuntimeError, AttributeError))
w = torch.ones(3, device="cuda", requires_grad=True)
z = w * 2
q = (z * z).sum()
z.add_(1)
attempt("version", lambda: q.backward(), RuntimeError, "modified by an inplace operation")

child = os.fork()
if child == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        os._exit(0 if "forked subprocess" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (on_device * 2).sum().item() == 6
# Last, because like a device-side assertion it ends the use of the device.
attempt("index", lambda: on_device[torch.tensor([9], device="cuda")].cpu(), (IndexError, RuntimeError), "out of")
torch.save(said, sys.argv[1])
