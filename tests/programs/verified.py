"""Programs that are recorded and verified, and never executed: is every WIS program that the client emits what a node accepts?

A script runs on the device only, as it is written. Each of its batches is encoded by the client, read by a node's intake, and checked by an
executor's own code up to the point at which it would be compiled. What a script reads is 0, whatever was computed.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from msgspec import structs

from bus_schemas.batch import Batch, Upload
from services.server.executor.errors import Needs, Refused
from services.server.executor.preparing import NO_BODIES
from services.server.executor.programs import Programs
from services.server.executor.runner import Runner
from services.server.executor.tenant import Tenant
from services.server.intake import read_batch
from tests.programs.execute import Verdict
from tests.programs.script import Line, Program, Script, execute_line, extend, namespace
from tests.support.loopback import LoopbackLink, NodeRefuses
from wis.verify import Verified
from wooly.device import calls, kernels
from wooly.device.lowering import Unsupported
from wooly.device.lowering.values import Number
from wooly.device.programs import Stencil
from wooly.device.recorder import RECORDER
from wooly.device.tensors import HEAP, Buf
from wooly.errors import WoolyError
from wooly.link import Flush, Ticket

__all__ = ["Tally", "VerifyingLink", "repeat", "write_and_verify"]

FLUSH: Final = "torch.cuda.synchronize()"
"""The statement that sends a batch."""

COMPOSED: Final = 200
"""Batches that are composed of a script's operations."""
COMPOSED_INSTRUCTIONS_MAX: Final = 8
"""Of an operation that takes part."""
FORGOTTEN_AFTER: Final = 250
"""Scripts after which call plans and programs are forgotten, which would fill the memory."""


@dataclass
class Tally:
    """Of programs that a node accepted."""

    #: Batches with a program.
    programs: int = 0
    instructions: int = 0
    #: Digests of programs, cut to 8 bytes.
    structures: set[bytes] = field(default_factory=set)
    #: Digests of programs with their dims.
    distinct: set[bytes] = field(default_factory=set)
    #: Codes of WIS operations.
    ops: set[int] = field(default_factory=set)
    #: Operators of torch whose instructions were verified.
    operators: set[str] = field(default_factory=set)
    #: Templates that the client's own check refused, by message: it computes those calls otherwise.
    client_refusals: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs ({len(self.distinct)} distinct, {len(self.structures)} other than by sizes), {self.instructions} "
            f"instructions of {len(self.ops)} WIS operations, from {len(self.operators)} torch operators,"
        )

    def add(self, other: Tally) -> None:
        self.programs += other.programs
        self.instructions += other.instructions
        self.structures |= other.structures
        self.distinct |= other.distinct
        self.ops |= other.ops
        self.operators |= other.operators
        self.client_refusals += other.client_refusals


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A verified program in place of a compiled one."""

    verified: Verified
    instructions: int
    workspace_bytes: int = 0
    writes: frozenset[int] = frozenset()


class _Engine:
    """An engine that compiles nothing."""

    def prepare(self, verified: Verified) -> _Prepared:
        return _Prepared(verified, len(verified.bound.code))


class _Arrived:
    """Content and staging of a node at which all chunks have arrived and answers have room."""

    def missing(self, session: str, uploads: Iterable[Upload]) -> tuple[bytes, ...]:
        return ()

    def brought(self, session: str, upload: Upload) -> int:
        return upload.nbytes

    def refuse_answers(self, session: str, nbytes: int) -> None:
        return None


class VerifyingLink(LoopbackLink):
    """Accepts or refuses batches as a node does, and executes none. ``refusals``: what was refused, with the reason."""

    def __init__(self) -> None:
        super().__init__()
        nothing: Any = _Arrived()
        engine: Any = _Engine()
        space: Any = None
        self._new_runner = lambda store: Runner(store, nothing, nothing, nothing)
        self._new_store = lambda: Programs(engine)
        self.forget()
        self._tenant = Tenant(self.info.session, space, b"", "")
        self.refusals: list[str] = []
        self.tally = Tally()
        self.n_scripts = 0

    def forget(self) -> None:
        """Forget all programs, as a node does that starts again."""
        self._store = self._new_store()
        self._runner = self._new_runner(self._store)

    def take(self) -> Tally:
        """The count since the last call."""
        taken, self.tally = self.tally, Tally()
        return taken

    def submit(self, flush: Flush) -> Ticket:
        try:
            return super().submit(flush)
        except Exception as refusal:  # by the encoder, by the node, or by a fault of this check: a script might catch any of them
            self.refusals.append(f"{type(refusal).__name__}: {refusal}")
            raise

    def _execute(self, batch: Batch, ticket: Ticket, flush: Flush) -> None:
        tenant = self._tenant
        try:
            if batch.program:
                self._prepare(batch, flush)
                batch = structs.replace(batch, **NO_BODIES)
            plan = self._runner._plan(tenant, batch)
            self._runner._check(tenant, batch, plan)
        except (Refused, Needs) as refusal:
            places = refusal.fault.places if isinstance(refusal, Refused) else ()
            raise NodeRefuses(f"{refusal}: {'; '.join(places)}") from None
        tenant.sizes.update(plan.made)
        tenant.sizes.update(plan.created)
        ticket.answer = [bytes(read.nbytes) for read in batch.reads]
        for handle in batch.frees:
            del tenant.sizes[handle]
        if plan.ready is not None:
            self._count(batch, plan.ready.prepared, flush)

    def _prepare(self, batch: Batch, flush: Flush) -> None:
        try:
            self._store.ready(batch, self._tenant.whose)
        except Needs:  # a node forgets; the client sends everything again
            data = self._encoder.encode_whole(self.seq, flush, batch.uploads)
            self._store.ready(read_batch(data, self.info.session)[0], self._tenant.whose)

    def _count(self, batch: Batch, prepared: Any, flush: Flush) -> None:
        tally = self.tally
        tally.programs += 1
        tally.instructions += prepared.instructions
        tally.structures.add(batch.program[:8])
        tally.distinct.add(batch.program[:8] + batch.dims[:8])
        tally.ops.update([instr.op for instr in prepared.verified.bound.program.code])
        if flush.origin is not None:
            tally.operators.update([operation.name for operation in flush.origin.operations])


def _link() -> VerifyingLink:
    """This process's link. It is opened by the first call."""
    was_open = RECORDER.is_open
    link = RECORDER.link()
    assert isinstance(link, VerifyingLink)
    if not was_open:
        _count_client_refusals(link)
    return link


def _count_client_refusals(link: VerifyingLink) -> None:
    """Count from now on the templates that the client's own check refuses: such calls take another way, and no node sees them."""
    check = calls.verify_stencil

    def counting(stencil: Stencil, *, scattered: bool) -> None:
        try:
            check(stencil, scattered=scattered)
        except Unsupported as refusal:
            link.tally.client_refusals[f"{stencil.name}: {refusal}"] += 1
            raise

    calls.verify_stencil = counting


class _Refused(Exception):
    """A batch of the script was refused."""


class _Script(Script):
    """A script that runs on the device, whose values mean nothing."""

    device = "cuda"
    sizes = ((1, 2, 3, 4), (0, 1, 2, 3, 5, 8, 17, 64, 130))
    elements_max = 1 << 17

    def __init__(self, seed: int, link: VerifyingLink, operations: _Operations) -> None:
        super().__init__(seed)
        self._link, self._operations = link, operations
        self._sends = random.Random(~seed)
        self._how_often = self._sends.choice((1.0, 1.0, 1.0, 0.6, 0.3, 0.0))

    def write(self, text: str, rounds: bool) -> bool:
        kept = super().write(text, rounds)
        self._look(text, kept)
        if kept and self._sends.random() < self._how_often:
            self._operations.keep()
            execute_line(FLUSH, self.names)
            self._look(FLUSH, kept=False)
            self.program.lines.append(Line(FLUSH))
        return kept

    def _look(self, text: str, kept: bool) -> None:
        if self._link.refusals:
            if not kept:
                self.program.lines.append(Line(text))
            raise _Refused

    def _adopt(self, used: set[str], rounds: bool) -> None:
        super()._adopt(used, rounds=False)

    def _bounded(self, used: set[str]) -> bool:
        return all(v.numel() <= self.elements_max for v in map(self.names.get, used) if isinstance(v, torch.Tensor))

    def _converts(self, used: set[str], text: str) -> bool:
        return True

    def _replay(self) -> None:
        """What is half done stays so: it is a state as good as any."""
        self.tensors = [t for t in self.tensors if t in self.names and self.value(t).numel() <= self.elements_max]
        self.modules = [m for m in self.modules if m in self.names]


class _Operations:
    """The operations that a script records, for batches that are composed of them at random."""

    def __init__(self, link: VerifyingLink, seed: int) -> None:
        self._link = link
        self._rng = random.Random(f"compose {seed}")
        self._arguments: dict[Stencil, Sequence[Number]] = {}

    def keep(self) -> None:
        """Take what is pending, which is sent then."""
        for stencil, _, arguments in RECORDER.pending:
            if len(stencil.code) <= COMPOSED_INSTRUCTIONS_MAX:
                self._arguments[stencil] = arguments

    def compose(self, n_batches: int) -> None:
        """Send batches of two or three operations each, whose inputs are fresh buffers or what operations before them made. All buffers die
        in the batch, or some only after it."""
        rng, known = self._rng, list(self._arguments.items())
        for _ in range(min(n_batches, 40 * len(known))):
            buffers: list[Buf] = []
            for stencil, arguments in rng.choices(known, k=rng.randint(2, 3)):
                handles: list[int] = []
                for need in stencil.needs[: stencil.n_ins]:
                    fitting = [x.handle for x in buffers if x.nbytes >= need and x.handle not in handles]
                    handles.append(rng.choice(fitting) if fitting and rng.random() < 0.7 else self._zeros(need, buffers))
                handles += [self._buffer(need, buffers) for need in stencil.needs[stencil.n_ins :]]
                RECORDER.push((stencil, handles, arguments))
            kept = [x for x in buffers if rng.random() < 0.3] if rng.random() < 0.6 else []
            del buffers
            with contextlib.suppress(NodeRefuses, WoolyError):
                RECORDER.flush()
            del kept
            if self._link.refusals:
                return

    def _zeros(self, nbytes: int, buffers: list[Buf]) -> int:
        """A buffer from before."""
        nbytes += self._rng.choice((0, 0, 8))
        handle = self._buffer(nbytes, buffers)
        RECORDER.alloc(handle, nbytes)
        return handle

    @staticmethod
    def _buffer(nbytes: int, buffers: list[Buf]) -> int:
        buffers.append(HEAP.Buf(HEAP.new_handle(nbytes), nbytes))
        return buffers[-1].handle


def write_and_verify(seed: int, composed: int = COMPOSED) -> tuple[Program, Verdict, Tally]:
    """Write the script of a seed and verify all of its batches, and ``composed`` more of its operations."""
    link = _link()
    if link.n_scripts % FORGOTTEN_AFTER == 0:
        link.forget()
        kernels.forget_plans()
    link.n_scripts += 1
    operations = _Operations(link, seed)
    script = _Script(seed, link, operations)
    with contextlib.suppress(_Refused):
        extend(script)
    script.names.clear()
    verdict = _ended(link, operations, len(script.program.lines), composed)
    return script.program, verdict, link.take()


def repeat(program: Program, composed: int = COMPOSED) -> Verdict:
    """Verify the batches of a script that was written before."""
    link, names = _link(), namespace("cuda")
    operations = _Operations(link, program.seed)
    torch.manual_seed(program.seed % (1 << 32))
    for number, line in enumerate(program.lines, 1):
        if line.text == FLUSH:
            operations.keep()
        execute_line(line.text, names)
        if link.refusals:
            return _ended(link, operations, number, 0)
    names.clear()
    return _ended(link, operations, len(program.lines), composed)


def _ended(link: VerifyingLink, operations: _Operations, n_lines: int, composed: int) -> Verdict:
    """Send what is left, and what is composed."""
    if not link.refusals:
        operations.keep()
        execute_line(FLUSH, namespace("cuda"))
    if not link.refusals:
        operations.compose(composed)
    return Verdict("refused", link.refusals[0], n_lines) if link.refusals else Verdict()
