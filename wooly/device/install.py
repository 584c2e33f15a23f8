"""Switching the device on: the backend, its kernels, its face.

Must run before the first backward pass of the process (autograd counts devices once); the ``torch.backends`` entry point sees to that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch._C import _ImperativeEngine
from torch.autograd.graph import increment_version
from torch.autograd.variable import Variable
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import backend_registration

from wooly.device import attention, checks, collectives, ctc, fallback, kernels, nested, sparse, sparse_ops, transfer  # noqa: F401  # ctc registers
from wooly.device.backend import BACKEND, CPU_KEYS, all_op_names, has_kernel, is_our_device, library, raw_device
from wooly.device.lowering import COMPOSITES, LOWERINGS, fft
from wooly.device.memory import MemoryCounter
from wooly.device.recorder import RECORDER, RECORDERS, Recorder
from wooly.device.schema import Kind, OpInfo, describe, functional_of, overload
from wooly.device.tensors import HEAPS, VIEWS, Heap, inplace_views, view_kernel
from wooly.link import Link

_connect: Final[list[Callable[[int], Link]]] = []
_libraries: Final[list[Any]] = []  # registrations live as long as these
_registered: Final[dict[str, OpInfo]] = {}

_OTHER_BACKENDS: Final = ("quantize", "sparse", "mkldnn", "cudnn", "miopen", "nested", "_mps", "fbgemm", "_cslt", "vulkan", "xnnpack")
"""Operations of other layouts and libraries get no kernel each: those that a dense tensor reaches go to ``fallback.unclaimed``."""

_LEFT_OUT: Final = frozenset(
    """
    detach detach_ alias lift lift_fresh resize_as_ requires_grad_ is_same_size set_data retain_grad _version
    sym_size sym_numel sym_stride sym_storage_offset _unsafe_view new_empty empty_like new_empty_strided _lazy_clone
    is_coalesced dense_dim _nnz _has_compatible_shallow_copy_type is_pinned _pin_memory record_stream q_scale q_zero_point
    _fw_primal _make_dual unsafe_chunk unsafe_split unsafe_split_with_sizes _resize_output _resize_output_
    _thnn_fused_lstm_cell _thnn_fused_gru_cell
    copy is_set_to empty set_ resize_ equal _local_scalar_dense _copy_from _copy_from_and_resize empty_strided
    """.split()
)
"""Operations that torch composes of others rightly, that have kernels of their own here, or that never reach a device."""


def installed() -> bool:
    """Has the device been switched on in this process?"""
    return bool(_libraries)


def kernel_names() -> list[str]:
    """The operator overloads with a generated kernel."""
    return sorted(_registered)


def register(connect: Callable[[int], Link], module: Any, wrap: Callable[[Any], Any] = lambda library: library) -> None:
    """Register backend and kernels. ``connect(index)`` opens a device's session at first use; ``module`` is the backend module torch asks;
    ``wrap(library)`` is what kernels are registered with."""
    if installed():
        raise RuntimeError("the device is already installed in this process")
    _connect.append(connect)
    RECORDER.connect_with(partial(connect, 0))
    backend_registration._setup_privateuseone_for_python_backend(BACKEND, backend_module=module)
    unwrapped = library("aten", "IMPL")
    _libraries.append(unwrapped)
    aten = wrap(unwrapped)
    taken = _by_hand(aten)
    for name in all_op_names():
        if name.startswith("aten::") and name not in taken:
            _generated(aten, name)
    attention.register(aten)
    fft.register(aten)
    collectives.register()
    _others(unwrapped)
    _follow_default_dtype()
    Variable._execution_engine = _CallingThreadEngine()
    register_optimizer_step_post_hook(_after_step)
    os.register_at_fork(after_in_child=_after_fork)


def add_device(index: int) -> None:
    """Let the process use device ``index`` as well, which has a session of its own; its first device is always there."""
    if index in RECORDERS:
        return
    kernels.serve_several()
    HEAPS[index] = Heap(index, MemoryCounter(index))
    RECORDERS[index] = Recorder(HEAPS[index])
    RECORDERS[index].connect_with(partial(_connect[0], index))
    RECORDERS[index].forked = RECORDER.forked


def close_all() -> None:
    """Send what is pending for each device and end its session."""
    for recorder in reversed(RECORDERS.values()):
        recorder.close()


class _CallingThreadEngine(_ImperativeEngine):
    """torch's autograd engine, which executes every backward pass in the thread that calls it.

    By default torch gives each device a worker thread. That thread releases its last tensors at any time after ``backward`` has returned,
    so which buffers are freed in which batch, and which results become temporaries of a program, would differ from run to run.
    """

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        before = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        try:
            return super().run_backward(*args, **kwargs)
        finally:
            torch._C._set_multithreading_enabled(before)


def _others(aten: Any) -> None:
    """What happens to operators that have no kernel of their own here: those of other libraries, those of other layouts."""
    every = library("_", "IMPL")
    _libraries.append(every)
    every.fallback(fallback.unclaimed, "PrivateUse1")
    every.fallback(fallback.no_quantized, "QuantizedPrivateUse1")
    for key, (cpu_key, cpu_keys) in sparse.CPU_KEYS_OF.items():
        every.fallback(fallback.on_sparse, key)
        for name in all_op_names():
            if name.startswith("aten::") and (has_kernel(name, cpu_key) or name in sparse_ops.COMPOSED[key]):
                _on_sparse(aten, name, key, cpu_keys)
        for name in sparse.FACTORIES:
            aten.impl(name, _here(overload(f"aten::{name}")), key.replace("PrivateUse1", "CUDA"))
    _of_nested(aten, every)


def _on_sparse(aten: Any, name: str, key: str, cpu_keys: Any) -> None:
    """Register the kernel of ``name`` for sparse tensors of dispatch key ``key``, unless the fallback of all operators is reached."""
    op, composed = overload(name), sparse_ops.COMPOSED[key].get(name)
    if op is None:
        return
    if name[6:] in sparse.STRUCTURAL:
        aten.impl(name[6:], _structural(op, cpu_keys), key)
    elif composed is not None:
        aten.impl(name[6:], _composed_or(composed, op), key)
    elif has_kernel(name, "CompositeExplicitAutograd") or has_kernel(name, "CompositeExplicitAutogradNonFunctional"):
        aten.impl(name[6:], partial(fallback.on_sparse, op), key)  # torch's composite is for dense tensors


def _of_nested(aten: Any, every: Any) -> None:
    """The kernels for nested tensors of the strided layout."""
    key, (cpu_key, cpu_keys) = "NestedTensorPrivateUse1", nested.CPU_KEY
    every.fallback(fallback.on_sparse, key)
    aten.impl(nested.MADE_OF_BUFFER, view_kernel(overload(f"aten::{nested.MADE_OF_BUFFER}")), "PrivateUse1")
    for attending in (key, "AutogradNestedTensor"):
        aten.impl("scaled_dot_product_attention", attention.of_nested, attending)
    for name in all_op_names():
        op = overload(name) if name.startswith("aten::") and has_kernel(name, cpu_key) else None
        if op is not None:
            composed = nested.COMPOSED.get(name)
            kernel = partial(fallback.on_sparse, op) if name[6:] in nested.READING else fallback.with_tensors_for_numbers(op, cpu_keys)
            aten.impl(name[6:], composed or kernel, key)


def _structural(op: Any, cpu_keys: Any) -> Callable[..., Any]:
    kernel = view_kernel(op, cpu_keys)

    def named(*args: Any, **kwargs: Any) -> Any:
        """With the name that C++ has for this device, where the program says "cuda", and its number for what C++ makes without one."""
        index = None
        if is_our_device(kwargs.get("device")):
            index = transfer.check_device(kwargs["device"])
            kwargs["device"] = torch.device(BACKEND, index)
        elif args and isinstance(args[0], torch.Tensor):
            index = raw_device(args[0]).index
        with transfer.beside(index):
            return kernel(*args, **kwargs)

    return named


def _here(factory: Any) -> Callable[..., Any]:
    """The operator ``factory``, asked for a tensor on device="cuda", which is not what C++ calls this device."""
    return lambda *args, **kwargs: factory(*args, **kwargs | {"device": torch.device(BACKEND, transfer.check_device(kwargs.get("device")))})


def _composed_or(composed: Callable[..., Any], op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = composed(*args, **kwargs)
        return fallback.on_sparse(op, *args, **kwargs) if result is NotImplemented else result

    return kernel


def _after_step(*_: Any) -> None:
    """A training step ends with its optimizer's: send it, so that the node works while the script prepares the next."""
    for recorder in RECORDERS.values():
        recorder.flush()


def _after_fork() -> None:
    forked = any(recorder.forked or recorder.is_open for recorder in RECORDERS.values())
    for recorder in RECORDERS.values():
        recorder.after_fork(forked)
    if forked:
        kernels.after_fork()


def _by_hand(aten: Any) -> set[str]:
    """Views, transfers and composites; returns the names that need no generated kernel."""
    copy_ = kernels.make_kernel(describe("aten::copy_", overload("aten::copy_")))
    to_copy = kernels.make_kernel(describe("aten::_to_copy", overload("aten::_to_copy")))
    by_name: dict[str, Callable[..., Any]] = {
        "aten::empty.memory_format": transfer.empty,
        "aten::empty_strided": transfer.empty_strided,
        "aten::copy_": transfer.make_copy_(copy_),
        "aten::_copy_from": lambda src, dst, non_blocking=False: dst.copy_(src),
        "aten::_copy_from_and_resize": lambda src, dst: transfer.resize_(dst, src.size()).copy_(src),
        "aten::_to_copy": transfer.make_to_copy(to_copy),
        "aten::_local_scalar_dense": transfer.local_scalar_dense,
        "aten::equal": transfer.equal,
        "aten::resize_": transfer.resize_,
        "aten::set_.source_Storage_storage_offset": transfer.set_storage_offset_,
        "aten::set_.source_Storage": transfer.set_storage_,
        "aten::set_.source_Tensor": transfer.set_tensor_,
        "aten::set_": transfer.set_,
        "aten::is_pinned": lambda self, device=None: False,
        "aten::record_stream": lambda self, s: None,
        "aten::_assert_tensor_metadata": _structural(overload("aten::_assert_tensor_metadata"), CPU_KEYS),
    }
    by_name |= {f"aten::{name}": view_kernel(overload(f"aten::{name}")) for name in VIEWS}
    by_name |= {name: view_kernel(overload(name)) for name in inplace_views()}
    by_name |= {info.name: _checked(composite, info) for composite, info in described(COMPOSITES) if not _is_lowered(info)}
    for name, kernel in by_name.items():
        aten.impl(name.removeprefix("aten::"), kernel, "PrivateUse1")
    # A factory asked for device="cuda" arrives at torch's CUDA key.
    for name in ("aten::empty.memory_format", "aten::empty_strided"):
        aten.impl(name.removeprefix("aten::"), by_name[name], "CUDA")
    return set(by_name)


def described(composites: Mapping[str, Callable[..., Any]]) -> list[tuple[Callable[..., Any], OpInfo]]:
    """Those of torch's operators, with their descriptions; without what the running version of torch does not have."""
    of_torch = [(composite, name, overload(name)) for name, composite in composites.items() if name.startswith("aten::")]
    return [(composite, describe(name, op)) for composite, name, op in of_torch if op is not None]


def _checked(composite: Callable[..., Any], info: OpInfo) -> Callable[..., Any]:
    """``composite``, behind the check of element types where there is one for its operation; what it refuses, on the CPU."""
    checked = checks.refuses_dtypes(info)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *(kwargs.get(arg.name, arg.default) for arg in info.args[len(args) :])]
        if checked:
            checks.dtypes(info, values)
        return fallback.composed(composite, info, values)

    return kernel


def _is_lowered(info: OpInfo) -> bool:
    """Is there a lowering for some calls of this operation? (Others may still have a composite.)"""
    return info.name in LOWERINGS or (info.mutates and functional_of(info) in LOWERINGS)


def _generated(aten: Any, name: str) -> None:
    """Register a generated kernel for ``name`` where the device needs one."""
    base = name[6:].partition(".")[0]
    if base in _LEFT_OUT or any(part in name for part in _OTHER_BACKENDS):
        return
    if has_kernel(name, "CompositeImplicitAutograd") and not (name in LOWERINGS and has_kernel(name, "Autograd")):
        return  # torch composes it above autograd; a kernel below would cut its gradient off, but for those with a gradient of their own
    op = overload(name)
    if op is None:
        return
    info = describe(name, op)
    if info.is_view or not (info.tensor_returns or info.mutates or name in LOWERINGS):
        return
    if not _is_lowered(info) and has_kernel(name, "CompositeExplicitAutograd"):
        return  # torch composes it of operations that we have
    kernel = kernels.make_kernel(info)
    if info.args and info.args[0].kind is Kind.TENSORS and base.startswith(_ON_LISTS):
        kernel = _in_pieces(info, kernel)
    if info.mutates and base.startswith("_foreach_"):
        kernel = _counting_versions(kernel)
    aten.impl(name[6:], kernel, "PrivateUse1")
    if info.is_factory:
        aten.impl(name[6:], kernel, "CUDA")
    _registered[name] = info


_ON_LISTS: Final = ("_foreach_", "_fused_", "_amp_foreach_")
"""Operations of these names do the same to every element of lists of one length."""

_PIECE: Final = 512
"""Tensors of a list that one record covers: with the most instructions a tensor (those of AMSGrad), far below what a program may hold."""


def _in_pieces(info: OpInfo, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, an operation on lists, called for long lists a piece at a time."""
    lists = [arg.kind in (Kind.TENSORS, Kind.NUMBERS) for arg in info.args]
    named = {arg.name for arg, is_list in zip(info.args, lists, strict=True) if is_list}

    def in_pieces(*args: Any, piece_max: int = _PIECE, **kwargs: Any) -> Any:
        n = len(args[0])
        if n <= piece_max:
            try:
                return kernel(*args, **kwargs)
            except RuntimeError:
                if not _on_several_devices(args):
                    raise
                if n > 1:  # one by one, as CUDA then does
                    return in_pieces(*args, piece_max=1, **kwargs)
                if info.base != "_foreach_copy_":
                    raise
                args[0][0].copy_(args[1][0], *args[2:])
                return None
        at = [i for i, value in enumerate(args) if lists[i] and isinstance(value, list | tuple)]
        names = [name for name, value in kwargs.items() if name in named and isinstance(value, list | tuple)]
        if any(len(value) not in (0, n) for value in (*(args[i] for i in at), *(kwargs[name] for name in names))):
            return kernel(*args, **kwargs)  # which raises what torch raises
        out: list[Any] = []
        for start in range(0, n, piece_max):
            piece = slice(start, start + piece_max)
            given = [value[piece] if i in at else value for i, value in enumerate(args)]
            out += in_pieces(*given, **kwargs | {name: kwargs[name][piece] for name in names}) or ()
        return None if info.mutates else out

    return in_pieces


def _on_several_devices(values: Sequence[Any]) -> bool:
    return len({raw_device(tensor) for _, tensor in checks.tensors_of(values)}) > 1


def _counting_versions(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, an in-place operation on a list: autograd counts the versions of single tensors, and leaves those of lists to kernels."""

    def counting(self: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> None:
        kernel(self, *args, **kwargs)
        increment_version(self)

    return counting


def _follow_default_dtype() -> None:
    """Plans hold result types, some of which follow torch's default type."""
    for name in ("set_default_dtype", "set_default_tensor_type"):
        original = getattr(torch, name)

        def changed(value: Any, original: Any = original) -> None:
            original(value)
            kernels.forget_plans()

        changed.__doc__, changed.__name__ = original.__doc__, name
        setattr(torch, name, changed)
