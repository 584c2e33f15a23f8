"""``torch.distributed`` for tensors of the device: the collectives of ``nccl`` and ``gloo`` process groups.

Each rank is a process with a session of its own. A collective reads its tensors from the device, exchanges bytes with the other ranks by
gloo, and writes the results to the device. Reductions go through the ranks in order, each element on one rank, so results do not depend on
timing, transport or size: two runs give the same bits. Sums of 16-bit floats are formed in float32 and rounded once.

A process group serves the device by a gloo backend, also under the name ``nccl``. Kernels are registered for the operators ``c10d::*``,
in which DDP, FSDP, DTensor, functional collectives and ``torch.distributed``'s own functions all end.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from wooly.device.backend import BACKEND, DEVICE, OURS, SHOWN, is_ours, library
from wooly.device.imports import when_imported

_ONE_ROUND_BYTES: Final = 1 << 16
"""Up to so many bytes of all ranks together, every rank gets all tensors and reduces them itself: one exchange instead of two."""

_NCCL_TIMEOUT: Final = timedelta(minutes=10)
"""How long a collective of an ``nccl`` group may take, unless the script says otherwise: torch's value."""

_NCCL_VERSION: Final = (2, 27, 5)
"""What programs are shown that choose by it: all data types and reductions."""

_c10d: Final[Any] = getattr(torch._C, "_distributed_c10d", None)
_registrations: Final[list[Any]] = []  # registrations last as long as these objects


def _available() -> bool:
    """Was torch built with process groups and gloo?"""
    return dist.is_available() and dist.is_gloo_available()


# ---------------------------------------------------------------------------------------------------------------- one group on the CPU


class _Exchange:
    """One collective of a process group: its backend, and how long it may take. All tensors here are flat bytes on the CPU.

    ``timeout_ms`` below 0: the group's own. Raises DistBackendError when a rank has ended, or is late.
    """

    def __init__(self, group: Any, timeout_ms: int = -1) -> None:
        self.group: Final[Any] = group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)
        self.backend: Final[Any] = self.group._get_backend(torch.device(BACKEND))
        self.rank: Final[int] = self.group.rank()
        self.size: Final[int] = self.group.size()
        self._timeout: Final = None if timeout_ms < 0 else timedelta(milliseconds=timeout_ms)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """What gloo raises inside, as the error that it is."""
        try:
            yield
        except RuntimeError as error:
            raise dist.DistBackendError(
                f"rank {self.rank} of {self.size} could not exchange data with the others; one has ended, or is late: {error}"
            ) from error

    def _wait(self, start: Callable[..., Any], *arguments: Any) -> None:
        with self.named():
            start(*arguments).wait()

    def barrier(self) -> None:
        self._wait(self.backend.barrier, self._options(dist.BarrierOptions()))

    def _options(self, options: Any, **values: int) -> Any:
        """Of one call to the backend."""
        if self._timeout is not None:
            options.timeout = self._timeout
        for name, value in values.items():
            setattr(options, name, value)
        return options

    def broadcast(self, data: Tensor, root: int) -> None:
        self._wait(self.backend.broadcast, [data], self._options(dist.BroadcastOptions(), rootRank=root, rootTensor=0))

    def gather_all(self, data: Tensor) -> Tensor:
        """The bytes of all ranks, of equal number, as rows."""
        rows = data.new_empty((self.size, data.numel()))
        self._wait(self.backend.allgather, [list(rows.unbind())], [data], self._options(_c10d.AllgatherOptions()))
        return rows

    def gather(self, data: Tensor, root: int) -> Tensor:
        """The same at ``root``; no rows elsewhere."""
        rows = data.new_empty((self.size if self.rank == root else 0, data.numel()))
        targets = [list(rows.unbind())] if self.rank == root else []
        self._wait(self.backend.gather, targets, [data], self._options(dist.GatherOptions(), rootRank=root))
        return rows

    def scatter(self, rows: Sequence[Tensor], nbytes: int, root: int) -> Tensor:
        """This rank's row of ``root``'s."""
        data = torch.empty(nbytes, dtype=torch.uint8)
        sources = [list(rows)] if self.rank == root else []
        self._wait(self.backend.scatter, [data], sources, self._options(dist.ScatterOptions(), rootRank=root))
        return data

    def swap(self, data: Tensor, received: Sequence[int] = (), sent: Sequence[int] = ()) -> Tensor:
        """Part i of ``data`` goes to rank i; the parts of all ranks for this one. Sizes in bytes; without, parts are equal."""
        out = data.new_empty(sum(received) if received else data.numel())
        self._wait(self.backend.alltoall_base, out, data, list(received), list(sent), self._options(dist.AllToAllOptions()))
        return out


def _bytes(tensor: Tensor) -> Tensor:
    """Its elements in order, as flat bytes on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _parts(data: Tensor, nbytes: Sequence[int]) -> list[Tensor]:
    parts: tuple[Tensor, ...] = torch.ops.aten.split_with_sizes(data, list(nbytes))
    return list(parts)


def _fill(tensor: Tensor, data: Tensor) -> None:
    """Write bytes into a tensor of the device; those beyond its size are padding."""
    if tensor.numel():
        with torch.no_grad():
            own = data[: _nbytes(tensor)]
            aligned = own if own.storage_offset() % tensor.element_size() == 0 else own.clone()
            tensor.copy_(aligned.view(tensor.dtype).reshape(tensor.shape))


def _padded(data: Tensor, nbytes: int) -> Tensor:
    return data if data.numel() == nbytes else torch.cat([data, data.new_zeros(nbytes - data.numel())])


# ---------------------------------------------------------------------------------------------------------------------- reductions

_Fold = Callable[[Tensor, Tensor], Tensor]
_FOLDS: Final[dict[str, _Fold]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_OF_BOOL: Final = {"SUM": "MAX", "PRODUCT": "MIN"}  # as NCCL
_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _fold(rows: Sequence[Tensor], op: str) -> Tensor:
    """Rows of one shape into one, from the first to the last."""
    dtype = rows[0].dtype
    if dtype is torch.bool:
        rows, op = [row.view(torch.uint8) for row in rows], _OF_BOOL.get(op, op)
    wide = _WIDER.get(dtype, rows[0].dtype)
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total = _FOLDS[op](total, row.to(wide))
    if op == "AVG":
        exact = dtype.is_floating_point or dtype.is_complex
        total = total / len(rows) if exact else torch.div(total, len(rows), rounding_mode="trunc")
    return total.to(dtype)


class _Reduction:
    """A reduction over the ranks of a group. Raises ValueError for PREMUL_SUM."""

    def __init__(self, exchange: _Exchange, op: Any) -> None:
        self._exchange: Final = exchange
        self._op: Final[str] = dist.ReduceOp.RedOpType(op.op()).name
        if self._op not in _FOLDS:
            raise ValueError(f"ReduceOp.{self._op} is not known for tensors of this device; use one of {', '.join(_FOLDS)}")

    def all(self, tensor: Tensor) -> Tensor:
        """The result on every rank, as flat bytes."""
        size, data = self._exchange.size, _bytes(tensor)
        if size * data.numel() <= _ONE_ROUND_BYTES:
            return self._folded(self._exchange.gather_all(data), tensor.dtype)
        part_nbytes = -(-tensor.numel() // size) * tensor.element_size()
        return self._exchange.gather_all(self.part(_padded(data, part_nbytes * size), tensor.dtype)).reshape(-1)

    def part(self, data: Tensor, dtype: torch.dtype) -> Tensor:
        """This rank's part of the result, of as many equal parts as there are ranks; bytes in and out."""
        return self._folded(self._exchange.swap(data).reshape(self._exchange.size, -1), dtype)

    def _folded(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return _fold([row.view(dtype) for row in rows], self._op).view(torch.uint8) if rows.numel() else rows.new_empty(0)


# ------------------------------------------------------------------------------------------------------------------- the operators
#
# Arguments and results are those of torch/csrc/distributed/c10d/Ops.cpp. A collective has ended when its operator returns; the work that
# it returns is complete.


def _work(result: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)


def _done(result: Any) -> Any:
    return _work(result).boxed()


def _broadcast(tensors: list[Tensor], group: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1) -> Any:
    exchange, tensor = _Exchange(group, timeout), tensors[root_tensor]
    data = _bytes(tensor) if exchange.rank == root else torch.empty(_nbytes(tensor), dtype=torch.uint8)
    exchange.broadcast(data, root)
    if exchange.rank != root:
        _fill(tensor, data)
    return tensors, _done(tensors)


def _all_reduce_each(tensors: list[Tensor], group: Any, op: Any, timeout: int) -> None:
    reduction = _Reduction(_Exchange(group, timeout), op)
    for tensor in tensors:
        _fill(tensor, reduction.all(tensor))


def _allreduce(tensors: list[Tensor], group: Any, op: Any, sparse_indices: Any = None, async_op: bool = True, timeout: int = -1) -> Any:
    _all_reduce_each(tensors, group, op, timeout)
    return tensors, _done(tensors)


def _allreduce_coalesced(tensors: list[Tensor], group: Any, op: Any, async_op: bool = True, timeout: int = -1) -> Any:
    _all_reduce_each(tensors, group, op, timeout)
    return _done(tensors)


def _reduce(tensors: list[Tensor], group: Any, op: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1) -> Any:
    exchange, tensor = _Exchange(group, timeout), tensors[root_tensor]
    data = _Reduction(exchange, op).all(tensor)
    if exchange.rank == root:
        _fill(tensor, data)
    return _done(tensors)


def _allgather(outputs: list[list[Tensor]], sources: list[Tensor], group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    exchange = _Exchange(group, timeout)
    for several, source in zip(outputs, sources, strict=True):
        rows = exchange.gather_all(_padded(_bytes(source), max(map(_nbytes, several))))
        for output, row in zip(several, rows, strict=True):
            _fill(output, row)
    return outputs, _done(outputs[0])


def _allgather_coalesced(outputs: list[list[Tensor]], sources: list[Tensor], group: Any, async_op: bool = True) -> Any:
    return _allgather(outputs, sources, group)[1]


def _allgather_base(output: Tensor, source: Tensor, group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    exchange = _Exchange(group, timeout)
    _check_whole(output, source, exchange.size, "output", "input")
    _fill(output, exchange.gather_all(_bytes(source)).reshape(-1))
    return output, _done([output])


def _check_whole(whole: Tensor, part: Tensor, size: int, name: str, name_of_part: str) -> None:
    """Raises where the tensor of all ranks and that of one are of two types, or of sizes that do not fit, as NCCL's process group does."""
    if whole.dtype != part.dtype:
        raise TypeError(f"{name} tensor must have the same type as {name_of_part} tensor: {whole.dtype} and {part.dtype}")
    if whole.numel() != part.numel() * size:
        sizes = f"{whole.numel()} elements, and {size} times {part.numel()}"
        raise ValueError(f"{name} tensor size must be equal to world_size times {name_of_part} tensor size: {sizes}")


def _allgather_into_tensor_coalesced(outputs: list[Tensor], sources: list[Tensor], group: Any, async_op: bool = True) -> Any:
    for output, source in zip(outputs, sources, strict=True):
        _allgather_base(output, source, group)
    return _done(outputs)


def _reduce_scatter(
    outputs: list[Tensor], sources: list[list[Tensor]], group: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    reduction = _Reduction(_Exchange(group, timeout), op)
    for output, several in zip(outputs, sources, strict=True):
        nbytes = max(map(_nbytes, several))
        _fill(output, reduction.part(torch.cat([_padded(_bytes(source), nbytes) for source in several]), output.dtype))
    return outputs, _done(outputs)


def _reduce_scatter_base(output: Tensor, source: Tensor, group: Any, op: Any, async_op: bool = True, timeout: int = -1) -> Any:
    exchange = _Exchange(group, timeout)
    _check_whole(source, output, exchange.size, "input", "output")
    _fill(output, _Reduction(exchange, op).part(_bytes(source), output.dtype))
    return output, _done([output])


def _reduce_scatter_tensor_coalesced(
    outputs: list[Tensor], sources: list[Tensor], group: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    for output, source in zip(outputs, sources, strict=True):
        _reduce_scatter_base(output, source, group, op, timeout=timeout)
    return _done(outputs)


def _gather(outputs: list[list[Tensor]], sources: list[Tensor], group: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    rows = _Exchange(group, timeout).gather(_bytes(sources[0]), root)
    for output, row in zip(outputs[0] if outputs else (), rows, strict=True):
        _fill(output, row)
    return _done(outputs[0] if outputs else [])


def _scatter(outputs: list[Tensor], sources: list[list[Tensor]], group: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    exchange = _Exchange(group, timeout)
    rows = [_bytes(source) for source in sources[0]] if exchange.rank == root else []
    _fill(outputs[0], exchange.scatter(rows, _nbytes(outputs[0]), root))
    return outputs, _done(outputs)


def _alltoall(outputs: list[Tensor], sources: list[Tensor], group: Any, async_op: bool = True, timeout: int = -1) -> Any:
    received, sent = [_nbytes(t) for t in outputs], [_nbytes(t) for t in sources]
    data = _Exchange(group, timeout).swap(torch.cat([_bytes(source) for source in sources]), received, sent)
    for output, part in zip(outputs, _parts(data, received), strict=True):
        _fill(output, part)
    return outputs, _done(outputs)


def _alltoall_base(
    output: Tensor, source: Tensor, group: Any, received: Sequence[int], sent: Sequence[int], async_op: bool = True, timeout: int = -1
) -> Any:
    def nbytes_of(rows: Sequence[int], tensor: Tensor) -> list[int]:
        row_nbytes = _nbytes(tensor) // max(1, tensor.shape[0])
        return [n * row_nbytes for n in rows]

    if bool(received) != bool(sent):  # a rank may leave one of them out where its parts are equal
        size = _Exchange(group).size
        received = received or [output.shape[0] // size] * size
        sent = sent or [source.shape[0] // size] * size
    _fill(output, _Exchange(group, timeout).swap(_bytes(source), nbytes_of(received, output), nbytes_of(sent, source)))
    return _done([output])


def _barrier(tensor: Tensor, group: Any, device_ids: Sequence[int] = (), async_op: bool = True, timeout: int = -1) -> Any:
    _Exchange(group, timeout).barrier()
    return _done([tensor])


class _Message:
    """A message that is on its way; one that came is written to the device when its receiver asks. In place of torch's ``Work``, whose
    subclasses lose their methods on the way through the operator.

    A thread waits for it: gloo completes only what is waited for, and breaks the connection where the work is dropped before.
    """

    def __init__(self, group: Any, start: Callable[[Any, list[Tensor]], Any], data: Tensor, target: Tensor | None = None) -> None:
        """``start(backend, [data])`` posts it; ``target``: what it is for, of the receiver."""
        self._exchange, self._data, self._target = _Exchange(group), data, target
        self._error: dist.DistBackendError | None = None
        self._over, self._writing = threading.Event(), threading.Lock()
        with self._exchange.named():
            self._work = start(self._exchange.backend, [data])
        threading.Thread(target=self._await, name="wooly message", daemon=True).start()

    def _await(self) -> None:
        try:
            with self._exchange.named():
                self._work.wait()
        except dist.DistBackendError as error:
            self._error = error
        self._over.set()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait for the message. Raises DistBackendError when it does not come, or not in time."""
        if not self._over.wait(timeout.total_seconds() or None):
            raise dist.DistBackendError(f"rank {self._exchange.rank} of {self._exchange.size}: no message within {timeout}")
        if self._error is not None:
            raise self._error
        return self.is_completed()

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether it has come, or failed."""
        with self._writing:
            if self._over.is_set() and self._error is None and self._target is not None:
                _fill(self._target, self._data)
                self._target = None
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


def _received(group: Any, target: Tensor, start: Callable[[Any, list[Tensor]], Any]) -> _Message:
    return _Message(group, start, torch.empty(_nbytes(target), dtype=torch.uint8), target)


_KERNELS: Final[dict[str, Callable[..., Any]]] = {
    "broadcast_": _broadcast,
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "reduce_": _reduce,
    "allgather_": _allgather,
    "allgather_coalesced_": _allgather_coalesced,
    "_allgather_base_": _allgather_base,
    "allgather_into_tensor_coalesced_": _allgather_into_tensor_coalesced,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_tensor_coalesced,
    "gather_": _gather,
    "scatter_": _scatter,
    "alltoall_": _alltoall,
    "alltoall_base_": _alltoall_base,
    "barrier": _barrier,
}


def register() -> None:
    """Register the kernels, where torch has process groups."""
    if _available():
        c10d = library("c10d", "IMPL")
        _registrations.append(c10d)
        for name, kernel in _KERNELS.items():
            c10d.impl(name, kernel, "PrivateUse1")


# ------------------------------------------------------------------------------------------------------------------ process groups


def _mend_fsdp(put: Callable[[Any, str, Any], None], module: Any) -> None:
    """``FullyShardedDataParallel(device_id=0)``: torch takes a number for a device by its own name of ours."""
    original: Any = module._get_device_from_device_id

    def device_of(device_id: Any, *args: Any) -> Any:
        return original(torch.device(SHOWN, device_id) if isinstance(device_id, int) else device_id, *args)

    put(module, "_get_device_from_device_id", device_of)


def _of_attempt(store: Any) -> Any:
    """``store``, apart from what the ranks put there before torchrun started them again: gloo would connect to those that have ended. With
    several agents there is no number of the attempt that all of them know."""
    environ = os.environ
    return _c10d.PrefixStore(environ["TORCHELASTIC_RESTART_COUNT"], store) if environ.get("GROUP_WORLD_SIZE") == "1" else store


def patch(put: Callable[[Any, str, Any], None]) -> None:
    """Let process groups serve the device; ``put`` replaces a name of torch's."""
    if not _available():
        return
    from torch.distributed import distributed_c10d as c10d

    internals: Any = c10d
    Gloo: Any = c10d.ProcessGroupGloo

    class ProcessGroupNCCL(Gloo):  # type: ignore[misc]  # pybind's class, untyped
        """What ``nccl`` is here: gloo, under that name."""

        class Options(_c10d.Backend.Options):  # type: ignore[misc]  # as above
            """torch and its users set attributes of it; none of NCCL's has a meaning here."""

            def __init__(self, is_high_priority_stream: bool = False) -> None:
                super().__init__("nccl")
                self.is_high_priority_stream = is_high_priority_stream
                self.config = SimpleNamespace()

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            super().__init__(_of_attempt(store), rank, size, options._timeout)

    class BarrierOptions(_c10d.BarrierOptions):  # type: ignore[misc]  # as above
        """Of a barrier, whose tensor C++ would make on a CUDA device."""

        @property
        def device(self) -> torch.device | None:
            of_base: torch.device | None = _c10d.BarrierOptions.device.__get__(self)
            return of_base

        @device.setter
        def device(self, device: torch.device) -> None:
            _c10d.BarrierOptions.device.__set__(self, DEVICE() if device.type in OURS else device)

    when_imported("torch.distributed.fsdp._init_utils", partial(_mend_fsdp, put))  # importing it takes a second
    for owner in (dist, internals):
        put(owner, "BarrierOptions", BarrierOptions)
        put(owner, "is_nccl_available", lambda: True)
        put(owner, "ProcessGroupNCCL", ProcessGroupNCCL)
    put(internals, "_NCCL_AVAILABLE", True)
    put(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    put(internals, "default_pg_nccl_timeout", _NCCL_TIMEOUT)
    c10d.Backend.default_device_backend_map[BACKEND] = c10d.Backend.NCCL
    register_backend = dist.ProcessGroup._register_backend

    def registered(self: Any, device: torch.device, kind: Any, backend: Any) -> None:
        for name in (SHOWN, BACKEND) if device.type in OURS else (device.type,):
            register_backend(self, torch.device(name), kind, backend)

    put(dist.ProcessGroup, "_register_backend", registered)
    start_coalescing, end_coalescing = dist.ProcessGroup._start_coalescing, dist.ProcessGroup._end_coalescing

    def start(self: Any, device: torch.device) -> None:
        if device.type not in OURS:
            start_coalescing(self, device)

    def end(self: Any, device: torch.device) -> Any:
        return _work([]) if device.type in OURS else end_coalescing(self, device)

    of_group, wait_for = dist.ProcessGroup, dist.Work.wait
    post, receive, receive_any = of_group.send, of_group.recv, of_group.recv_anysource

    def send(self: Any, tensors: list[Tensor], dstRank: int, tag: int) -> Any:
        if not is_ours(tensors[0]):
            return post(self, tensors, dstRank, tag)
        return _Message(self, lambda backend, data: backend.send(data, dstRank, tag), _bytes(tensors[0]))

    def recv(self: Any, tensors: list[Tensor], srcRank: int, tag: int) -> Any:
        if not is_ours(tensors[0]):
            return receive(self, tensors, srcRank, tag)
        return _received(self, tensors[0], lambda backend, data: backend.recv(data, srcRank, tag))

    def recv_anysource(self: Any, tensors: list[Tensor], tag: int) -> Any:
        if not is_ours(tensors[0]):
            return receive_any(self, tensors, tag)
        return _received(self, tensors[0], lambda backend, data: backend.recv_anysource(data, tag))

    def wait(self: Any, timeout: timedelta = timedelta()) -> Any:
        return wait_for(self) if timeout and self.is_completed() else wait_for(self, timeout)  # a work that a future made takes no time

    put(dist.Work, "wait", wait)
    put(dist.ProcessGroup, "send", send)
    put(dist.ProcessGroup, "recv", recv)
    put(dist.ProcessGroup, "recv_anysource", recv_anysource)
    put(dist.ProcessGroup, "_start_coalescing", start)
    put(dist.ProcessGroup, "_end_coalescing", end)
