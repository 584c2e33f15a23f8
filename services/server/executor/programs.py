"""Programs and dims by digest, and what verifying and compiling them gave; a guess of the dims that come next; what a batch makes of its
program. What was made is shared by all sessions: equal digests are equal bytes.

Whether something is *known* is not shared: a batch may name a body only if a session of the same code domain (``whose``) sent it. Else
every tenant could ask which programs, and which sizes, others run. How long compiling takes is not hidden.

Used by two threads: the one that prepares (``ready``) and the one that launches (``at_once``). Verification and compilation run outside the
lock, in the former only, in pieces if its caller wants (``jit.compiling.process.pausing_after``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from bus_schemas import faults
from bus_schemas.batch import Batch, Fault, ReadResult
from jit.engine import Engine, Launch, Number, Prepared, Run
from jit.errors import KernelRefused
from services.server.executor.errors import Needs, Refused
from wis.encoding import decode_program
from wis.errors import DecodeError, VerifyError
from wis.kernel.model import decode_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wis.program import BufferKind, Program
from wis.verify import Verified, verify
from wooly.shared.lru import LruDict

_PROGRAMS_MAX: Final = 64

_Numbers = npt.NDArray[np.int64]


class Foresight:
    """Remembers, for the programs executed last, their dims and how these changed."""

    def __init__(self) -> None:
        self._seen: LruDict[tuple[str, bytes], tuple[bytes, _Numbers, _Numbers | None]] = LruDict(_PROGRAMS_MAX)

    def next(self, whose: str, program: bytes, name: bytes, dims: bytes) -> bytes | None:
        """``program`` ran with ``dims`` (digest ``name``) for ``whose``: the dims that go on as its last two steps did, None when those
        differ."""
        last = self._seen.get((whose, program))
        if last is not None and last[0] == name:
            return None
        now = np.frombuffer(dims, "<i8")
        step = now - last[1] if last is not None and last[1].size == now.size else None
        self._seen[whose, program] = name, now, step
        if last is None or step is None or last[2] is None or not np.array_equal(step, last[2]):
            return None
        return (now + step).tobytes()


_PROGRAM_BYTES: Final = 512 << 20
_DIMS_BYTES: Final = 512 << 20
_READY_BYTES: Final = 1 << 30
_KERNEL_BYTES: Final = 64 << 20
_DOMAINS_MAX: Final = 256
_KNOWN_MAX: Final = 8192
"""Names that a code domain knows. One that was forgotten is asked for again."""
_BYTES_AN_INSTRUCTION: Final = 4096
"""A generous guess of what a verified and planned instruction takes, for the cache's bounds only."""
_ENTRY_BYTES: Final = 512
"""What an entry of a cache takes besides."""
_PLACES_MAX: Final = 20
_GUESS: Final = Batch(session="", epoch=0, seq=0)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class Ready:
    """A compiled program with the buffers it asks the session for: (nbytes, created) in key order. ``external``: the places of those that
    are not created; ``created``: place and bytes of those that are. ``scalars``: how many immediates."""

    prepared: Prepared
    buffers: tuple[tuple[int, bool], ...]
    external: tuple[int, ...]
    created: tuple[tuple[int, int], ...]
    scalars: int
    fresh: bool = True
    """Not executed yet."""


class _Cache(Generic[K, V]):
    """Least recently used entries go first once their weights exceed ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, weight: int) -> None:
        weight += _ENTRY_BYTES
        old = self._entries.pop(key, None)
        self._weight += weight - (old[1] if old else 0)
        self._entries[key] = (value, weight)
        while self._weight > self._capacity and len(self._entries) > 1:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._weight -= evicted


class Programs:
    """The executor's program store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._programs: _Cache[bytes, Program] = _Cache(_PROGRAM_BYTES)
        self._dims: _Cache[bytes, bytes] = _Cache(_DIMS_BYTES)
        self._ready: _Cache[tuple[bytes, bytes], Ready] = _Cache(_READY_BYTES)
        self._verified: _Cache[bytes, Verified] = _Cache(_READY_BYTES)
        self._kernels: _Cache[bytes, VerifiedKernel] = _Cache(_KERNEL_BYTES)
        self._known: LruDict[str, LruDict[bytes, None]] = LruDict(_DOMAINS_MAX)
        """By code domain: the digests whose bodies its sessions sent, and the pairs (program, dims) of which they sent everything."""
        self._foresight = Foresight()

    def ready(self, batch: Batch, whose: str) -> Ready:
        """What runs ``batch``'s program. Raises Refused when it breaks a rule, Needs when a body is neither in the batch nor known to the
        code domain ``whose``, Unfinished."""
        pair = (batch.program, batch.dims)
        bodies = None if self._knows(whose, batch.program + batch.dims) else self._bodies(batch, whose)
        found = self._locked(self._ready, pair)
        if found is not None:
            return found
        program, dims, kernels = bodies or self._bodies(batch, whose)
        # Other dims of the same program: only what changed is checked and planned again.
        verified = _verify(program, dims, self._locked(self._verified, batch.program), kernels)
        weight = (len(program.code) + 1) * _BYTES_AN_INSTRUCTION
        with self._lock:
            self._verified.put(batch.program, verified, weight)
        made = _ready(self._prepare(verified), program, verified)
        with self._lock:
            self._ready.put(pair, made, weight)
        return made

    def at_once(self, batch: Batch, whose: str) -> Ready | None:
        """As ``ready``, for the launching thread: None where that would have to read a body, or compile. Raises Needs."""
        pair = (batch.program, batch.dims)
        if self._knows(whose, batch.program + batch.dims):
            found = self._locked(self._ready, pair)
            if found is not None:
                return found
        if batch.program_body or batch.dims_body or batch.dims_delta is not None or batch.kernels:
            return None
        self._bodies(batch, whose)
        return self._locked(self._ready, pair)

    def next(self, batch: Batch, whose: str) -> Batch | None:
        """``batch`` was executed (launching thread): what ``ready`` may take ahead of the batch that will likely follow, None when there
        is nothing to guess or it is ready already."""
        with self._lock:
            done, dims = self._ready.get((batch.program, batch.dims)), self._dims.get(batch.dims)
        if done is None or dims is None or not done.fresh:
            return None  # dims that come back are ready, and so is what followed them
        done.fresh = False
        body = self._foresight.next(whose, batch.program, batch.dims, dims)
        if body is None:
            return None
        name = blake3(body).digest()
        with self._lock:
            if self._ready.get((batch.program, name)) is not None:
                return None
        return msgspec.structs.replace(_GUESS, program=batch.program, dims=name, dims_body=body)

    def outline(self, batch: Batch, whose: str) -> Program | None:
        """The program that ``batch`` names, whether or not it may run; None when it is not known: the launching thread reads none."""
        return self._if_known(self._programs, batch.program, whose)

    def _prepare(self, verified: Verified) -> Prepared:
        try:
            return self._engine.prepare(verified)
        except KernelRefused as error:
            raise Refused(Fault(faults.KERNEL_REFUSED, str(error), fatal=False)) from None

    def _bodies(self, batch: Batch, whose: str) -> tuple[Program, bytes, dict[bytes, VerifiedKernel]]:
        """Program, dims and kernels of the batch, learnt from it or known; remembers them."""
        program = self._learn_program(batch, whose) if batch.program_body else self._if_known(self._programs, batch.program, whose)
        dims = self._learn_dims(batch, whose)
        learnt = self._learn_kernels(batch, whose)
        named = program.kernels if program is not None else ()
        kernels = {name: learnt.get(name) or self._if_known(self._kernels, name, whose) for name in named}
        bodies = ((batch.program, program), (batch.dims, dims), *kernels.items())
        missing = tuple(name for name, body in bodies if body is None)
        if program is None or dims is None or missing:
            raise Needs(missing)
        self._learnt(whose, batch.program + batch.dims)
        return program, dims, {name: kernel for name, kernel in kernels.items() if kernel is not None}

    def _locked(self, cache: _Cache[K, V], key: K) -> V | None:
        with self._lock:
            return cache.get(key)

    def _knows(self, whose: str, name: bytes) -> bool:
        with self._lock:
            known = self._known.get(whose)
            return known is not None and name in known

    def _learnt(self, whose: str, name: bytes) -> None:
        """A session of ``whose`` sent this body."""
        with self._lock:
            known = self._known.get(whose)
            if known is None:
                known = LruDict(_KNOWN_MAX)
            known[name] = None
            self._known[whose] = known

    def _if_known(self, cache: _Cache[bytes, V], name: bytes, whose: str) -> V | None:
        return self._locked(cache, name) if self._knows(whose, name) else None

    def _learn_program(self, batch: Batch, whose: str) -> Program:
        known = self._if_known(self._programs, batch.program, whose)
        if known is not None:
            return known
        _check_digest("program", batch.program, batch.program_body)  # also when others sent it: only who has the body may name it
        program = self._locked(self._programs, batch.program)
        if program is None:
            try:
                program = decode_program(batch.program_body)
            except DecodeError as error:
                raise _refused(faults.UNVERIFIABLE, f"the program cannot be read: {error}") from None
            with self._lock:
                self._programs.put(batch.program, program, len(batch.program_body) * 8)
        self._learnt(whose, batch.program)
        return program

    def _learn_kernels(self, batch: Batch, whose: str) -> dict[bytes, VerifiedKernel]:
        """Those whose bodies ride along, verified. One that breaks a rule refuses the batch."""
        learnt = {}
        for body in batch.kernels:
            name = blake3(body).digest()
            kernel = self._locked(self._kernels, name) or _verify_kernel(body)
            learnt[name] = kernel
            with self._lock:
                self._kernels.put(name, kernel, len(body) * 8)
            self._learnt(whose, name)
        return learnt

    def _learn_dims(self, batch: Batch, whose: str) -> bytes | None:
        dims = batch.dims_body
        if batch.dims_delta is not None:
            base = self._if_known(self._dims, batch.dims_delta[0], whose)
            if base is None:
                return self._if_known(self._dims, batch.dims, whose)
            dims = _patched(base, batch.dims_delta[1], batch.dims_delta[2])
        if not dims:
            known = self._if_known(self._dims, batch.dims, whose)
            if known is not None or batch.dims != blake3(b"").digest():
                return known
        _check_digest("dims", batch.dims, dims)
        if len(dims) % 8:
            raise _refused(faults.MALFORMED, f"dims of {len(dims)} bytes are no numbers of 64 bits")
        with self._lock:
            self._dims.put(batch.dims, dims, len(dims))
        self._learnt(whose, batch.dims)
        return dims


def _verify(program: Program, dims: bytes, like: Verified | None, kernels: dict[bytes, VerifiedKernel]) -> Verified:
    try:
        return verify(program, dims, like=like, kernels=kernels)
    except VerifyError as error:
        raise _unverifiable("program", error) from None


def _verify_kernel(body: bytes) -> VerifiedKernel:
    try:
        return verify_kernel(decode_kernel(body))
    except DecodeError as error:
        raise _refused(faults.UNVERIFIABLE, f"a kernel cannot be read: {error}") from None
    except VerifyError as error:
        raise _unverifiable("kernel", error) from None


def _unverifiable(what: str, error: VerifyError) -> Refused:
    places = tuple(str(finding) for finding in error.findings[:_PLACES_MAX])
    return Refused(Fault(faults.UNVERIFIABLE, f"the {what} breaks {len(error.findings)} rule(s) of the instruction set", places, False))


def _ready(prepared: Prepared, program: Program, verified: Verified) -> Ready:
    kinds_and_sizes = zip(program.buffers, verified.bound.nbytes, strict=True)
    buffers = tuple((nbytes, kind == BufferKind.CREATED) for kind, nbytes in kinds_and_sizes if kind != BufferKind.TEMP)
    external = tuple(at for at, (_, new) in enumerate(buffers) if not new)
    created = tuple((at, nbytes) for at, (nbytes, new) in enumerate(buffers) if new)
    return Ready(prepared, buffers, external, created, program.n_scalars)


def _check_digest(what: str, name: bytes, body: bytes) -> None:
    if blake3(body).digest() != name:
        raise _refused(faults.MALFORMED, f"the {what} does not match its digest {name.hex()[:16]}: it was damaged on the way")


def _patched(base: bytes, positions: bytes, values: bytes) -> bytes:
    """``base`` with the i64 at ``positions`` (u32) replaced by ``values`` (i64), all little-endian."""
    where = np.frombuffer(positions, "<u4") if len(positions) % 4 == 0 else None
    what = np.frombuffer(values, "<i8") if len(values) % 8 == 0 else None
    if where is None or what is None or len(where) != len(what) or (len(where) and int(where.max()) >= len(base) // 8):
        raise _refused(faults.MALFORMED, "the dims delta does not fit the dims it starts from")
    out = np.frombuffer(base, "<i8").copy()
    out[where] = what
    return out.tobytes()


def _refused(name: str, message: str) -> Refused:
    return Refused(Fault(name, message, fatal=False))


@dataclass(slots=True)
class Plan:
    """A batch that may be applied; not changed after its creation. ``made``: handles that its allocs and uploads make, with sizes;
    ``created``: those its program makes."""

    ready: Ready | None
    handles: list[int]
    scalars: tuple[Number, ...]
    made: dict[int, int]
    created: dict[int, int]

    @property
    def wanted_bytes(self) -> int:
        return sum(self.made.values()) + sum(self.created.values())

    @property
    def written(self) -> frozenset[int]:
        """Handles of buffers from before the program that it may write."""
        return frozenset(self.handles[at] for at in self.ready.prepared.writes) if self.ready is not None else frozenset()

    @property
    def workspace_bytes(self) -> int:
        return self.ready.prepared.workspace_bytes if self.ready is not None else 0


@dataclass(slots=True)
class UnderWay:
    """A batch that was begun."""

    #: As it was received.
    received: Batch
    #: What is done of it: without the frees of buffers that were never made, with those that earlier refused batches owe.
    batch: Batch
    plan: Plan
    #: Continues where it was stopped; None: the batch has no program.
    run: Run | None
    #: What its pieces have taken.
    core_ns: int = 0
    #: The account of its program, which is over.
    launch: Launch | None = None
    #: Of its reads whose answers do not travel with its Done, by position: the name of the blob, and its pieces.
    blobs: dict[int, tuple[str, list[bytes]]] = field(default_factory=dict)
    #: Takes one piece of its reads at a time, with the answers as they come; None: its program is not over.
    reading: Iterator[None] | None = None
    answers: list[ReadResult] = field(default_factory=list)
