"""Checks whether the device can be activated in this process, before modules that use torch's private names are imported."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from wooly.config import HIDE_LOCAL, Config
from wooly.errors import ActivationError, UnsupportedTorch
from wooly.remedies import check_version, range_text

PRIVATE_NAMES: Final = (
    "_C.TensorBase.device",
    "_C.TensorBase.data",
    "_C.DispatchKeySet",
    "_C.DispatchKey.AutocastPrivateUse1",
    "_C._ExcludeDispatchKeyGuard",
    "_C._acc.create_empty_tensor",
    "_C._construct_storage_from_data_pointer",
    "_C._dispatch_get_all_op_names",
    "_C._dispatch_has_kernel_for_dispatch_key",
    "_C._ensureCUDADeviceGuardSet",
    "_C._swap_tensor_impl",
    "_has_compatible_shallow_copy_type",
    "_ops.OpOverload.redispatch",
    "_tensor_str._tensor_str",
    "cuda._lazy_init",
    "library.fallthrough_kernel",
    "ops.aten.set_.source_Storage_storage_offset",
    "serialization.register_package",
    "utils._device._device_constructors",
    "utils.backend_registration._setup_privateuseone_for_python_backend",
)
"""Names below ``torch`` that are not its public interface and without which the device cannot work."""


def check_process(config: Config) -> None:
    """Raises UnsupportedTorch or ActivationError, saying what to do."""
    if sys.platform != "linux":
        raise ActivationError(
            f"the client runs on Linux only, and this is {sys.platform}: run the script in a Linux container or virtual machine (WSL on "
            "Windows), or submit it to the cluster with `wooly submit`"
        )
    import torch

    check_version(torch.__version__)
    missing = missing_names(torch)
    if missing:
        raise UnsupportedTorch(
            f"torch {torch.__version__} lacks what the device depends on ({', '.join('torch.' + name for name in missing)}); "
            f"install an official torch {range_text()}"
        )
    check_local_gpu(torch, opted_in=config.local_gpu)
    check_autograd(torch)


def missing_names(torch: Any) -> list[str]:
    """Which of PRIVATE_NAMES this torch does not have."""
    missing = []
    for path in PRIVATE_NAMES:
        place: Any = torch
        try:
            for name in path.split("."):
                place = getattr(place, name)
        except AttributeError:
            # A submodule that `import torch` does not load counts as present when it can be imported.
            if path.startswith("utils.") and _importable("torch." + path.rpartition(".")[0], path.rpartition(".")[2]):
                continue
            missing.append(path)
    return missing


def _importable(module: str, name: str) -> bool:
    import importlib

    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def check_local_gpu(torch: Any, *, opted_in: bool) -> None:
    """Never take a local GPU over unasked: refuse when this torch could use one. When asked, hide it before its first use."""
    if torch.version.hip is not None:
        raise UnsupportedTorch("this is a ROCm build of torch, which is not tested; install the CPU or the CUDA build")
    if not torch._C._has_cuda:
        return  # a CPU build cannot use a local GPU
    if opted_in:
        if torch.cuda.is_initialized():
            raise ActivationError(
                "WOOLY_LOCAL_GPU=1 must be set before the local GPU is first used in this process; set it and start again"
            )
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None or (given.strip() and not given.strip().startswith("-")):  # else it hides every device, also the remote one
            os.environ["CUDA_VISIBLE_DEVICES"] = HIDE_LOCAL
        return
    count = torch.cuda.device_count()
    if count:
        raise ActivationError(
            f"this machine has {count} GPU{'s' if count > 1 else ''} of its own, which {'stay' if count > 1 else 'stays'} in use; "
            "set WOOLY_LOCAL_GPU=1 to use the remote device instead, or unset WOOLY_NATS_URL"
        )


def check_autograd(torch: Any) -> None:
    """Autograd counts the devices at its first backward pass; a device that comes later would abort it.

    While ``import torch`` runs, none can have happened. Later, any node ever made in this thread refuses: a backward may have run.
    """
    if getattr(sys.modules["torch"].__spec__, "_initializing", False):
        return
    node = torch.ones((), requires_grad=True).view(()).grad_fn
    if node is not None and node._sequence_nr() > 0:
        raise ActivationError(
            "autograd was already used in this process, too early for the device to join; switch the device on before: "
            "set WOOLY_NATS_URL before torch is imported, or start the script by `wooly run`"
        )
