"""The recorder: collects what the kernels record, and hands it to the link in batches.

Flushes happen only at points a script repeats exactly: where it looks at a value, at the end of an optimizer step, at a count of
records or bytes. So the programs of one step are those of the next.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

import torch

from bus_schemas.batch import LIMITS
from bus_schemas.session import SessionOpened
from wooly.counters import COUNTERS
from wooly.device.lowering.values import Number
from wooly.device.programs import Built, ProgramCache, Record, Stencil, TooLarge, wire
from wooly.device.tensors import FORK_MESSAGE, HEAP, Heap
from wooly.errors import ForkError, WoolyError
from wooly.link import Flush, Link, LinkWrapper, Origin, ReadBytes, Ticket

__all__ = ["Recorder", "RECORDER", "RECORDERS", "stats", "RECORDS_MAX", "UPLOAD_BYTES_MAX"]

BLOCKING: Final = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
"""Every record is sent and waited for at once, so that an error is raised at the line that caused it."""
RECORDS_MAX: Final = 1 if BLOCKING else 4096
"""A batch is sent at the latest after this many records, or new buffers that no record makes."""
_FREES_MAX: Final = LIMITS.buffers_max
"""Buffers that one batch frees; the rest follow in batches of their own."""
CAPTURED_BYTES_MAX: Final = 1 << 16
"""Of uploads that one capture keeps."""
UPLOAD_BYTES_MAX: Final = 32 << 20
"""A batch is sent at the latest when it holds this many bytes of uploads."""


class Recorder:
    """One device's pending batch. Kernels append to ``pending`` directly; any thread may, because list.append is atomic."""

    def __init__(self, heap: Heap) -> None:
        self.heap = heap
        self.pending: list[Record] = []
        self.counters = COUNTERS
        self._wire_bytes = 0
        self._allocs: list[tuple[int, int]] = []
        self._uploads: list[tuple[int, memoryview]] = []
        self._upload_bytes = 0
        self.programs = ProgramCache()
        self._link: Link | None = None
        self._connect: Callable[[], Link] | None = None
        self._last: Ticket | None = None
        #: batches to be sent before anything else
        self._built: list[Flush] = []
        self._since = self._until = ""
        self._lock = threading.RLock()
        self._pins: dict[int, int] = {}
        self._kept: set[int] = set()
        self.capturing = self._invalid = False
        self._captured: dict[int, memoryview] | None = None
        self.forked = False

    # --- the link

    def connect_with(self, connect: Callable[[], Link]) -> None:
        """``connect()`` opens the session; it is called when the device is first used."""
        self._connect = connect
        self.heap.on_first_use(self.link)

    def link(self) -> Link:
        """The session, opened on the first call."""
        self.check_process()
        with self._lock:
            if self._link is None:
                if self._connect is None:
                    raise RuntimeError("the device is not installed; call wooly.device.install.install first")
                self._link = self._connect()
                self.heap.memory.limit(self._link.info.quota_bytes, _capacity_bytes(self._link.info))
            return self._link

    def watch(self, wrap: Callable[[Link], LinkWrapper]) -> Callable[[], None]:
        """Let batches pass through ``wrap`` of the session, also when that opens later, until what is returned is called."""
        connect, wrapped = self._connect, list[LinkWrapper]()

        def opened() -> Link:
            assert connect is not None
            wrapped.append(wrap(connect()))
            return wrapped[0]

        def unwatch() -> None:
            with self._lock:
                if self._connect is opened:
                    self._connect = connect
                if wrapped and self._link is wrapped[0]:
                    self._link = wrapped[0].inner

        with self._lock:
            if self._link is not None:
                wrapped.append(wrap(self._link))
                self._link = wrapped[0]
            elif connect is not None:
                self._connect = opened
        return unwatch

    @property
    def is_open(self) -> bool:
        """True once the session is open: before, nothing was ever on the device."""
        return self._link is not None

    def info(self) -> SessionOpened:
        """What the node said when the session opened."""
        return self.link().info

    def free_bytes(self) -> int:
        """Free memory of the device in bytes, once the node has done everything recorded so far; raises what went wrong there."""
        self.synchronize()
        return self.link().free_bytes()

    def check_process(self) -> None:
        """Raises ForkError in a forked child of the process that opened the session."""
        if self.forked:
            raise ForkError(FORK_MESSAGE)

    def after_fork(self, forked: bool) -> None:
        """The child must neither use nor close its parent's session. ``forked``: the parent had used a device."""
        self.forked = forked
        self.pending.clear()
        self._built.clear()
        self._lock = threading.RLock()

    def close(self) -> None:
        """Send what is pending and end the session. What the node refused and the script has not heard of is written to stderr."""
        if self._link is None or self.forked:
            return
        try:
            with _written():
                self.flush()
            self._link.close()
            with _written():
                self._link.report()
        finally:
            self._link, self._wire_bytes = None, 0
            self._built.clear()

    # --- recording

    def push(self, record: Record) -> None:
        """Append one record; sends the batch when it has grown to its limit."""
        self.check_process()
        self._spoil_capture()
        self.pending.append(record)
        if len(self.pending) >= RECORDS_MAX:
            self.full()

    def alloc(self, handle: int, nbytes: int) -> None:
        """The buffer of ``handle`` must exist, zeroed, although no record makes it."""
        self._spoil_capture()
        self._allocs.append((handle, nbytes))
        if len(self._allocs) >= RECORDS_MAX and not self.capturing:
            self.flush()

    def upload(self, handle: int, data: memoryview) -> None:
        """The fresh buffer of ``handle`` is to hold ``data``, which must not change any more."""
        self._spoil_capture()
        if self.capturing:
            self._allocs.append((handle, len(data)))  # it will be freed as any other
            if self._captured is not None and len(data) + sum(map(len, self._captured.values())) <= CAPTURED_BYTES_MAX:
                self._captured[handle] = data
            elif len(data):
                self._refuse_while_capturing()
            return
        self._uploads.append((handle, data))
        self._upload_bytes += len(data)
        if self._upload_bytes > UPLOAD_BYTES_MAX or len(self._uploads) >= RECORDS_MAX:
            self.flush()

    def _spoil_capture(self) -> None:
        """What the process's first device captures meanwhile is no graph, for none holds the work of several devices."""
        if self.heap.index and RECORDER.capturing:
            RECORDER._invalid = True

    # --- sending

    def full(self) -> None:
        """The batch has grown to its limit: send it, unless it is captured."""
        if self.capturing:
            return
        if BLOCKING:
            self.synchronize()
        else:
            self.flush()

    def flush(self, reads: Sequence[tuple[int, int, int]] = ()) -> Ticket | None:
        """Send everything pending without waiting; the last ticket that was not waited for, or None."""
        self.check_process()
        if self.capturing:
            if reads:
                self._refuse_while_capturing()
            return self._last
        with self._lock:
            self._send_built()  # what an interrupted call left
            # Frees first: a buffer's death comes after the records that use it, so those are taken here or were sent before.
            freed = self._freed()
            records, allocs, uploads = self.pending[:], self._allocs[:], self._uploads[:]
            if not (records or allocs or uploads or reads or freed):
                return self._last
            self._move_lines()
            interrupted = True
            try:
                built = self._build(records, allocs, uploads, freed, reads)
                interrupted = False
            except Exception:  # a defect, which would come again with the same records: they are dropped
                interrupted = False
                raise
            finally:
                if interrupted:  # by Ctrl-C, say: all of it is sent later
                    self.heap.freed.extendleft(reversed(freed))
                else:
                    del self.pending[: len(records)], self._allocs[: len(allocs)], self._uploads[: len(uploads)]
                    self._upload_bytes = sum(len(data) for _, data in self._uploads)
            self._built += built
            ticket = self._send_built()
            while len(freed) == _FREES_MAX:
                freed = self._freed()
                self._built += self._build([], [], [], freed, ())
                self._send_built()
            return ticket

    def _send_built(self) -> Ticket | None:
        """Send all that is built, in order; the last ticket."""
        while self._built:
            flush = self._built[0]
            try:
                self._submit(flush)
            except WoolyError:  # of work before it, or the budget is used up: it was taken all the same, so the rest must follow
                del self._built[0]
                self._send_built()
                raise
            except BaseException:  # Ctrl-C, say: what the link has not taken is sent next time
                if flush.taken:
                    del self._built[0]
                else:
                    flush.reads = ()  # their caller does not ask again
                raise
            del self._built[0]
        return self._last

    def _build(
        self,
        records: list[Record],
        allocs: list[tuple[int, int]],
        uploads: list[tuple[int, memoryview]],
        freed: list[int],
        reads: Sequence[tuple[int, int, int]],
    ) -> list[Flush]:
        """The batches that do all this; several when one would be too large."""
        dead = set(freed)
        flush = Flush(reads=reads, n_ops=len(records), origin=Origin(self._since, self._until, exact=BLOCKING))
        used: set[int] = set()
        if records:
            wired = wire(records, dead)
            try:
                built = self.programs.get(wired)
            except TooLarge:
                middle = len(records) // 2
                return [*self._build(records[:middle], allocs, uploads, [], ()), *self._build(records[middle:], [], [], freed, reads)]
            flush.origin = Origin(self._since, self._until, wired.stencils, BLOCKING)
            _fill(flush, built, built.handles(wired.order), built.scalars(records))
            used = dead.intersection(wired.order)
            dead.difference_update(wired.temps())
        if dead:
            # What was made here and died unused was never there.
            unused = dead - used
            flush.allocs = [alloc for alloc in allocs if alloc[0] not in unused]
            flush.uploads = [upload for upload in uploads if upload[0] not in unused]
            dead.difference_update([h for h, _ in allocs if h in unused], [h for h, _ in uploads if h in unused])
            flush.frees = [h for h in freed if h in dead]
        else:
            flush.allocs, flush.uploads = allocs, uploads
        return [flush]

    def _move_lines(self) -> None:
        self._since, self._until = self._until, user_line()

    def _freed(self) -> list[int]:
        """Handles of buffers that died, the oldest first, as many as one batch frees. Pinned ones are kept until they are unpinned."""
        freed = self.heap.freed
        handles = [freed.popleft() for _ in range(min(len(freed), _FREES_MAX))]
        if not self._pins:
            return handles
        self._kept.update(handle for handle in handles if handle in self._pins)
        return [handle for handle in handles if handle not in self._pins]

    # --- captured batches

    def begin_capture(self, uploads: dict[int, memoryview] | None = None) -> None:
        """Keep what is recorded from now on, instead of sending it. ``uploads``: takes the content of small buffers by handle, which cannot
        be captured without. Raises AcceleratorError when something is captured already."""
        self._refuse_while_capturing()
        with self._lock:
            self.flush()
            self.capturing, self._invalid, self._captured = True, False, uploads

    def end_capture(self) -> tuple[list[Record], list[tuple[int, int]], set[int], bool]:
        """What was recorded, the buffers that must exist for it (handle, bytes), the handles that died meanwhile, and whether all of it
        could be captured. Nothing of it is pending any more."""
        with self._lock:
            records = self.pending[:]
            del self.pending[: len(records)]
            allocs, self._allocs = self._allocs, []
            died = set(self._freed())
            while self.heap.freed:
                died.update(self._freed())
            self.capturing = False
            return records, allocs, died, not self._invalid

    def pin(self, handles: Iterable[int]) -> None:
        """Do not free these buffers when they die."""
        for handle in handles:
            self._pins[handle] = self._pins.get(handle, 0) + 1

    def unpin(self, handles: Iterable[int]) -> None:
        """Let go what ``pin`` held; what has died meanwhile is freed with the next batch."""
        for handle in handles:
            self._pins[handle] -= 1
            if not self._pins[handle]:
                del self._pins[handle]
                if handle in self._kept:
                    self._kept.remove(handle)
                    self.heap.freed.append(handle)

    def repeat(self, built: Built, stencils: tuple[Stencil, ...], handles: list[int], scalars: list[Number]) -> None:
        """Send a captured program, after what is pending. Raises AcceleratorError in a capture."""
        self._refuse_while_capturing()
        with self._lock:
            self.flush()
            self._move_lines()
            flush = Flush(n_ops=len(stencils), origin=Origin(self._since, self._until, stencils, BLOCKING))
            _fill(flush, built, handles, scalars)
            self._built.append(flush)
            self._send_built()

    def _refuse_while_capturing(self) -> None:
        if self.capturing:
            self._invalid = True
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")

    # --- the link again

    def _submit(self, flush: Flush) -> Ticket:
        link = self.link()
        self._last = ticket = link.submit(flush)
        COUNTERS.ops += flush.n_ops
        COUNTERS.batches += 1
        COUNTERS.upload_bytes += sum(len(data) for _, data in flush.uploads)
        COUNTERS.wire_bytes += link.wire_bytes - self._wire_bytes
        self._wire_bytes = link.wire_bytes
        if not flush.reads:  # else it is waited for
            link.report()
        return ticket

    def fetch(self, reads: Sequence[tuple[int, int, int]]) -> list[ReadBytes]:
        """The bytes of (handle, offset, nbytes) ranges as they are after everything recorded so far. Waits."""
        COUNTERS.fetch_bytes += sum(nbytes for _, _, nbytes in reads)
        out: list[ReadBytes] = []
        for start in range(0, len(reads), LIMITS.reads_max):
            ticket = self.flush(reads[start : start + LIMITS.reads_max])
            assert ticket is not None, "a flush with reads is always sent"
            out += self._wait(ticket)
        return out

    def synchronize(self) -> None:
        """Wait until the node has done everything recorded so far; raises what went wrong there."""
        self._refuse_while_capturing()
        ticket = self.flush()
        if ticket is not None:
            self._wait(ticket)

    def _wait(self, ticket: Ticket) -> list[ReadBytes]:
        """Wait for a ticket, once."""
        COUNTERS.waits += 1
        if self._last is ticket:
            self._last = None
        return self.link().wait(ticket)


def _fill(flush: Flush, built: Built, handles: list[int], scalars: list[Number]) -> None:
    flush.program, flush.program_body = built.program, built.program_body
    flush.dims_digest, flush.dims = built.dims_digest, built.dims
    flush.handles, flush.scalars, flush.kernels = handles, scalars, built.kernels


def _capacity_bytes(info: SessionOpened) -> int:
    """Of the session's device; no buffer may be larger."""
    devices = info.node.devices if info.node is not None else ()
    found = [device.vram_bytes for device in devices if device.index in info.gpus or not info.gpus]
    return min([info.limits.buffer_bytes_max, *found[:1]])


@contextmanager
def _written() -> Iterator[None]:
    """Report at exit a refusal that the script can no longer catch."""
    try:
        yield
    except WoolyError as error:
        with suppress(OSError):  # a closed stderr
            sys.stderr.write(f"wooly: {error}\n")


RECORDER: Final = Recorder(HEAP)
"""That of the process's first device."""
RECORDERS: Final = {0: RECORDER}
"""Of the devices that the process uses, by number."""


def stats() -> dict[str, Any]:
    """Counters of this process: ops, batches, waits, wire_bytes, upload_bytes, fetch_bytes, templates, fallbacks {operation: calls}."""
    return COUNTERS.snapshot()


_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES: Final = (os.path.dirname(os.path.dirname(_TORCH)) + os.sep, sysconfig.get_path("stdlib") + os.sep)
_INTERNAL: Final = (_HERE, _TORCH, "<frozen")


def user_line() -> str:
    """``file:line`` of the innermost frame that is neither ours nor torch's, and no other library's if there is one; of the main thread
    when this one has none (threads of torch's: nested backward passes beyond its depth limit). Empty: there is none."""
    line = _line(sys._getframe(1))
    if line:
        return line
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    return _line(main) if main is not None else ""


def _line(frame: FrameType | None) -> str:
    library: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INTERNAL):
            if not name.startswith(_LIBRARIES):
                return f"{name}:{frame.f_lineno}"
            library = library or frame
        frame = frame.f_back
    return f"{library.f_code.co_filename}:{library.f_lineno}" if library is not None else ""
