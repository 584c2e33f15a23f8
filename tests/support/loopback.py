"""A link that executes flushes inside the process: the torch side tested without bus, server or sockets.

Every flush is encoded as the client does and read as the node does; what is executed is what came through. What a node would refuse
fails here: digests name their bodies, handles are fresh or known, programs pass the verifier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from blake3 import blake3

from bus_schemas.batch import LIMITS as BATCH_LIMITS
from bus_schemas.batch import Batch, Upload
from bus_schemas.session import DeviceInfo, NodeInfo, SessionOpened
from jit.runs import trap_of_run
from services.server.executor.runner import decode_handles
from services.server.intake import Bad, read_batch
from wis.encoding import decode_program
from wis.kernel.model import decode_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wis.launches import addresses
from wis.limits import LIMITS
from wis.program import BufferKind
from wis.reference import run
from wis.verify import Verified, verify
from wooly.errors import DeviceAssertError, OutOfFuelError, from_fault
from wooly.link import Flush, ReadBytes, Ticket
from wooly.transport.batches import BatchEncoder

__all__ = ["LoopbackLink", "NodeRefuses"]


class NodeRefuses(Exception):
    """A node would not read the message: a fault of the client."""


class LoopbackLink:
    """Executes with the reference interpreter, or with a jit engine when one is given (the caller closes the engine).

    ``flushes`` keeps every flush when ``keep`` is set; ``bodies`` counts distinct programs and dims seen so far.
    ``quota_bytes`` is the quota that the session gets (0: none).
    """

    def __init__(self, engine: Any = None, *, quota_bytes: int = 0, keep: bool = False) -> None:
        device = DeviceInfo(index=0, name="Loopback", backend="reference", cores=1, vram_bytes=16 << 30, vram_free_bytes=16 << 30)
        node = NodeInfo(node="loopback", name="loopback", address="", epoch=1, devices=(device,), data_port=())
        self.info = SessionOpened(session="loopback", epoch=1, node=node, quota_bytes=quota_bytes)
        self.wire_bytes = 0
        self.flushes: list[Flush] = []
        self.programs: dict[bytes, bytes] = {}
        self.dims: dict[bytes, bytes] = {}
        self.seq = 0
        self.closed = False
        self.keep = keep
        self._fault: Exception | None = None
        self._lenient = False
        self._verified: dict[tuple[bytes, bytes], Verified] = {}
        self._latest: dict[bytes, Verified] = {}  # by program: other dims of it need little checking
        self._kernels: dict[bytes, VerifiedKernel] = {}
        self._chunks: dict[bytes, bytes] = {}
        self._encoder = BatchEncoder(self.info.session, self.info.epoch, self.info.limits.batch_bytes_max)
        self._memory: _Memory = _EngineMemory(engine) if engine is not None else _ReferenceMemory()

    @property
    def handles(self) -> set[int]:
        """Buffers the node holds now."""
        return self._memory.handles

    def submit(self, flush: Flush) -> Ticket:
        flush.taken = True
        if self._fault is not None:
            raise self._fault
        if self.keep:
            self.flushes.append(flush)
        self.seq += 1
        ticket = Ticket(self.seq)
        try:
            self._execute(self._through_the_wire(flush), ticket, flush)
        except (DeviceAssertError, OutOfFuelError) as fault:  # found while executing: a node answers later, so it shows at the next call
            self._fault = fault
        return ticket

    def report(self) -> None:
        """What goes wrong is raised by the next call."""

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        if self._fault is not None:
            raise self._fault
        return ticket.answer

    def free_bytes(self) -> int:
        assert self.info.node is not None
        return self.info.node.devices[0].vram_bytes - self._memory.held_bytes

    def forget_fault(self) -> None:
        """Go on after a fault, which a node would not: for suites that run thousands of samples in one session.

        What the failed flush would have made is missing from now on, so frees of unknown buffers are let pass.
        """
        self._fault = None
        self._lenient = True

    def close(self) -> None:
        self.closed = True
        self._memory.close()

    def _through_the_wire(self, flush: Flush) -> Batch:
        """``flush`` as the node reads it. Raises NodeRefuses."""
        data = self._encoder.encode(self.seq, flush, tuple(self._upload(handle, bytes(data)) for handle, data in flush.uploads))
        self.wire_bytes += len(data)
        try:
            return read_batch(data, self.info.session)[0]
        except Bad as bad:
            raise NodeRefuses(f"the node refuses what the client sends: {bad.fault}") from None

    def _upload(self, handle: int, data: bytes) -> Upload:
        """Inline, or as chunks brought before: here there is no data port."""
        if len(data) <= BATCH_LIMITS.inline_bytes_max:
            return Upload(handle, len(data), data)
        chunks = [data[at : at + BATCH_LIMITS.chunk_bytes] for at in range(0, len(data), BATCH_LIMITS.chunk_bytes)]
        names = tuple(blake3(chunk).digest() for chunk in chunks)
        self._chunks.update(zip(names, chunks, strict=True))
        self.wire_bytes += len(data)
        return Upload(handle, len(data), chunks=names)

    def _execute(self, batch: Batch, ticket: Ticket, flush: Flush) -> None:
        memory = self._memory
        for handle, nbytes in batch.allocs:
            memory.alloc(handle, nbytes)
        for upload in batch.uploads:
            memory.alloc(upload.handle, upload.nbytes)
            memory.write(upload.handle, upload.inline or b"".join(self._chunks[name] for name in upload.chunks))
        self._chunks.clear()
        if batch.program:
            verified = self._verify(batch)
            scalars = [complex(*value) if isinstance(value, tuple) else value for value in batch.scalars]
            count = sum(kind != BufferKind.TEMP for kind in verified.bound.program.buffers)
            fault = memory.run(verified, scalars, decode_handles(batch.handles, count))
            if fault is not None:
                name, text, instruction = fault
                origin = flush.origin
                text = origin.explain(instruction, text) if origin is not None and instruction >= 0 else text
                raise from_fault(name, text, where=origin.text() if origin is not None else "")
        ticket.answer = [memory.read(read.handle, read.offset, read.nbytes) for read in batch.reads]
        for handle in batch.frees:
            if not (self._lenient and handle not in memory.handles):
                memory.free(handle)

    def _verify(self, batch: Batch) -> Verified:
        if batch.program_body:
            assert blake3(batch.program_body).digest() == batch.program, "digest does not name its body"
            self.programs[batch.program] = batch.program_body
        dims = batch.dims_body
        if batch.dims_delta is not None:
            base, positions, values = batch.dims_delta
            patched = np.frombuffer(self.dims[base], "<i8").copy()
            patched[np.frombuffer(positions, "<u4")] = np.frombuffer(values, "<i8")
            dims = patched.tobytes()
        if batch.dims not in self.dims:
            assert blake3(dims).digest() == batch.dims, "digest does not name its dims"
            self.dims[batch.dims] = dims
        key = (batch.program, batch.dims)
        verified = self._verified.get(key)
        if verified is None:
            like = self._latest.get(batch.program)
            program = like.bound.program if like is not None else decode_program(self.programs[batch.program])
            verified = verify(program, self.dims[batch.dims], LIMITS, like, self._kernels_of(batch))
            self._verified[key] = self._latest[batch.program] = verified
        return verified

    def _kernels_of(self, batch: Batch) -> dict[bytes, VerifiedKernel]:
        for body in batch.kernels:
            self._kernels[blake3(body).digest()] = verify_kernel(decode_kernel(body))
        return self._kernels


class _Memory:
    """The buffers of one session."""

    handles: set[int]

    @property
    def held_bytes(self) -> int:
        raise NotImplementedError

    def alloc(self, handle: int, nbytes: int) -> None:
        raise NotImplementedError

    def write(self, handle: int, data: bytes) -> None:
        raise NotImplementedError

    def read(self, handle: int, offset: int, nbytes: int) -> ReadBytes:
        raise NotImplementedError

    def free(self, handle: int) -> None:
        raise NotImplementedError

    def run(self, verified: Verified, scalars: Any, handles: Any) -> tuple[str, str, int] | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class _ReferenceMemory(_Memory):
    fuel = 1 << 22  # thread-instructions of one launch

    def __init__(self) -> None:
        self._buffers: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}

    @property
    def handles(self) -> set[int]:  # type: ignore[override]  # computed here, stored there
        return set(self._buffers)

    @property
    def held_bytes(self) -> int:
        return sum(buffer.size for buffer in self._buffers.values())

    def alloc(self, handle: int, nbytes: int) -> None:
        assert handle not in self._buffers, "an allocation must use a fresh handle"
        self._buffers[handle] = np.zeros(nbytes, np.uint8)

    def write(self, handle: int, data: bytes) -> None:
        self._buffers[handle][:] = np.frombuffer(data, np.uint8)

    def read(self, handle: int, offset: int, nbytes: int) -> ReadBytes:
        data = self._buffers[handle][offset : offset + nbytes]
        assert data.size == nbytes, "a read must lie inside its buffer"
        return data.tobytes()

    def free(self, handle: int) -> None:
        del self._buffers[handle]

    def run(self, verified: Verified, scalars: Any, handles: Any) -> tuple[str, str, int] | None:
        bound = verified.bound
        left = iter(handles)
        buffers: list[np.ndarray[Any, np.dtype[np.uint8]] | None] = []
        for kind, nbytes in zip(bound.program.buffers, bound.nbytes, strict=True):
            if kind == BufferKind.TEMP:
                buffers.append(None)
                continue
            handle = next(left)
            if kind == BufferKind.CREATED:
                self.alloc(handle, nbytes)
            buffer = self._buffers[handle]
            assert buffer.size >= nbytes, f"buffer {handle} holds {buffer.size} bytes, the program needs {nbytes}"
            buffers.append(buffer)
        assert next(left, None) is None, "more handles than buffers"
        traps = run(verified, scalars, buffers, self.fuel, addresses(bound, handles))
        if traps.out_of_fuel:
            return "OutOfFuel", f"kernel {traps.out_of_fuel}", -1
        text, instruction = trap_of_run(bound, traps.texts, traps.key)
        return ("Trap", text, instruction) if text else None

    def close(self) -> None:
        self._buffers.clear()


class _EngineMemory(_Memory):
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._space = engine.open_space()
        self.handles = set()
        self._prepared: dict[int, tuple[Verified, Any]] = {}

    @property
    def held_bytes(self) -> int:
        resident: int = self._space.resident_bytes
        return resident

    def alloc(self, handle: int, nbytes: int) -> None:
        assert handle not in self.handles, "an allocation must use a fresh handle"
        self._space.alloc(handle, nbytes)
        self.handles.add(handle)

    def write(self, handle: int, data: bytes) -> None:
        self._space.write(handle, 0, data)

    def read(self, handle: int, offset: int, nbytes: int) -> ReadBytes:
        return bytes(self._space.read(handle, offset, nbytes))

    def free(self, handle: int) -> None:
        self.handles.remove(handle)
        self._space.free(handle)

    def run(self, verified: Verified, scalars: Any, handles: Any) -> tuple[str, str, int] | None:
        entry = self._prepared.get(id(verified))
        if entry is None:
            entry = self._prepared[id(verified)] = (verified, self._engine.prepare(verified))
        launch = self._space.run(entry[1], list(scalars), list(handles))
        self.handles.update(handles)
        if launch.out_of_fuel:
            return "OutOfFuel", launch.out_of_fuel, -1
        return ("Trap", launch.trap, launch.trap_at) if launch.trap else None

    def close(self) -> None:
        self._space.close()
