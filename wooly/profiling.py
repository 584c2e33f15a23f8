"""``WOOLY_PROFILE``, ``wooly profile``: where the time of a script went, as a timeline for Perfetto or chrome://tracing and in a few lines.

The script's thread is in one of three states: it runs (the script's own code, and the recording of its operations), sends a batch, or waits
for an answer. The device's work is known by the core time of each batch, which the node measures: a batch is shown to have run at the end
of its way, on all cores of the device. So "at work" is the least that the device was.

Format: Trace Event Format, JSON object form (the Chrome project's document of that name); times in microseconds.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wooly.link import Flush, Link, LinkWrapper, ReadBytes, Ticket

_BATCHES_MAX: Final = 200_000
"""Batches in the timeline; later ones are only counted."""
_LINES_MAX: Final = 3
_MUCH: Final = 0.3
"""The share of the time from which on something is worth a hint."""


@dataclass(slots=True)
class Batch:
    """Times in ns of ``time.perf_counter_ns``; ``done_ns`` 0: no answer yet."""

    number: int
    line: str = ""
    names: tuple[str, ...] = ()
    n_ops: int = 0
    sent_bytes: int = 0
    begin_ns: int = 0
    sent_ns: int = 0
    done_ns: int = 0
    core_ns: int = 0


@dataclass(slots=True)
class Profile:
    """Of one session. ``cores``: of its device. The sums are of all batches, the lists of the first ``_BATCHES_MAX``."""

    cores: int
    begin_ns: int
    end_ns: int = 0
    n_batches: int = 0
    n_ops: int = 0
    sending_ns: int = 0
    waiting_ns: int = 0
    core_ns: int = 0
    upload_bytes: int = 0
    #: line of the script to (ns, times) that it waited
    waits: dict[str, tuple[int, int]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    #: (begin, end, number of the batch)
    waited: list[tuple[int, int, int]] = field(default_factory=list)
    #: operations that this machine computed, with counts
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    open: dict[int, Batch] = field(default_factory=dict)

    @property
    def wall_ns(self) -> int:
        return max(1, self.end_ns - self.begin_ns)

    @property
    def device_ns(self) -> int:
        """The least time that the device worked."""
        return min(self.wall_ns, self.core_ns // max(1, self.cores))

    def at_work(self) -> Iterator[tuple[Batch, int]]:
        """The batches for which the device worked, and from when on (at the latest); it ended when the answer came (at the latest)."""
        free_ns = self.begin_ns
        for one in self.batches:
            if one.done_ns:
                began_ns = max(free_ns, one.begin_ns, one.done_ns - one.core_ns // max(1, self.cores))
                if one.core_ns and began_ns < one.done_ns:
                    yield one, began_ns
                free_ns = one.done_ns

    def trace(self) -> dict[str, Any]:
        """The timeline."""
        script, way, device = 1, 2, 3
        names = {script: "script", way: "batches on their way", device: "device (at least)"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}} for tid, name in names.items()
        ]

        def span(tid: int, name: str, begin_ns: int, end_ns: int, **args: Any) -> dict[str, Any]:
            at_us, length_us = (begin_ns - self.begin_ns) / 1e3, max(0, end_ns - begin_ns) / 1e3
            return {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": at_us, "dur": length_us, "args": args}

        for one in self.batches:
            what = {"operations": one.n_ops, "torch": list(one.names), "bytes": one.sent_bytes}
            events.append(span(script, f"send {one.line}", one.begin_ns, one.sent_ns, batch=one.number, **what))
            if not one.done_ns:
                continue
            common = {"pid": 1, "tid": way, "cat": "batch", "id": one.number, "name": one.line or f"batch {one.number}"}
            for kind, at_ns in (("b", one.sent_ns), ("e", one.done_ns)):
                events.append({**common, "ph": kind, "ts": (at_ns - self.begin_ns) / 1e3, "args": {"core_us": one.core_ns / 1e3}})
        for one, began_ns in self.at_work():
            events.append(span(device, one.line or f"batch {one.number}", began_ns, one.done_ns, batch=one.number, operations=one.n_ops))
        events += [span(script, f"wait for batch {number}", begin_ns, end_ns) for begin_ns, end_ns, number in self.waited]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


class ProfiledLink(LinkWrapper):
    """A link that keeps a profile of what passes through it."""

    def __init__(self, link: Link, path: str = "") -> None:
        """``path``: of the timeline that ``finish`` writes."""
        super().__init__(link)
        self._path = path
        node = link.info.node
        index = link.info.gpus[0] if link.info.gpus else 0
        cores = next((device.cores for device in node.devices if device.index == index), 1) if node is not None else 1
        self.profile = Profile(cores, time.perf_counter_ns())
        self._lock = threading.Lock()

    def listen(self) -> Callable[[], None]:
        """Note the core time of batches that are answered, until what is returned is called."""
        session: Any = self._link
        while isinstance(session, LinkWrapper):
            session = session.inner
        others = getattr(session, "on_done", None)

        def done(seq: int, core_ns: int) -> None:
            self.done(seq, core_ns)
            if others is not None:
                others(seq, core_ns)

        def stop() -> None:
            session.on_done = others

        session.on_done = done
        return stop

    def submit(self, flush: Flush) -> Ticket:
        begin_ns, before = time.perf_counter_ns(), self.wire_bytes
        profile, origin = self.profile, flush.origin
        line = origin.lines() if origin is not None else ""
        names = tuple(dict.fromkeys(operation.name for operation in origin.operations)) if origin is not None else ()
        profile.upload_bytes += sum(len(data) for _, data in flush.uploads)
        ticket = self._link.submit(flush)
        sent_ns = time.perf_counter_ns()
        batch = Batch(
            ticket.seq, line, names[:_LINES_MAX], n_ops=flush.n_ops, sent_bytes=self.wire_bytes - before, begin_ns=begin_ns, sent_ns=sent_ns
        )
        profile.n_batches += 1
        profile.n_ops += flush.n_ops
        profile.sending_ns += sent_ns - begin_ns
        if len(profile.batches) < _BATCHES_MAX:
            profile.batches.append(batch)
            with self._lock:  # the answer may have come before
                early = profile.open.get(ticket.seq)
                if early is None:
                    profile.open[ticket.seq] = batch
                else:
                    del profile.open[ticket.seq]
                    batch.done_ns, batch.core_ns = max(early.done_ns, sent_ns), early.core_ns
        return ticket

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        begin_ns = time.perf_counter_ns()
        with self._lock:
            batch = self.profile.open.get(ticket.seq)
        line = batch.line if batch is not None else ""
        try:
            return self._link.wait(ticket)
        finally:
            end_ns = time.perf_counter_ns()
            profile = self.profile
            profile.waiting_ns += end_ns - begin_ns
            if not line and len(profile.waited) < _BATCHES_MAX:  # it was answered before it was waited for
                line = next((one.line for one in reversed(profile.batches[-8:]) if one.number == ticket.seq), "")
            waited_ns, times = profile.waits.get(line, (0, 0))
            profile.waits[line] = (waited_ns + end_ns - begin_ns, times + 1)
            if len(profile.waited) < _BATCHES_MAX:
                profile.waited.append((begin_ns, end_ns, ticket.seq))

    def done(self, seq: int, core_ns: int) -> None:
        """The node has answered batch ``seq``. Of the bus's thread."""
        now_ns = time.perf_counter_ns()
        profile = self.profile
        with self._lock:
            profile.core_ns += core_ns
            batch = profile.open.pop(seq, None)
            if batch is not None:
                batch.done_ns, batch.core_ns = now_ns, core_ns
            elif len(profile.batches) < _BATCHES_MAX:
                profile.open[seq] = Batch(seq, begin_ns=now_ns, sent_ns=now_ns, done_ns=now_ns, core_ns=core_ns)

    def finish(self, fallbacks: Mapping[str, int]) -> list[str]:
        """Write the timeline; returns the lines to show. A file that cannot be written gives a line instead of an error. ``fallbacks``:
        operations that this machine computed, with counts."""
        path = self._path
        profile = self.profile
        profile.end_ns, profile.fallbacks = time.perf_counter_ns(), fallbacks
        try:
            with open(path, "w") as file:
                json.dump(profile.trace(), file)
        except OSError as error:
            written = f"the timeline cannot be written to {path} ({error.strerror})"
        else:
            written = f"timeline: {path} (open it in https://ui.perfetto.dev or chrome://tracing)"
        return [*summary(profile), *advice(profile), written]


def path_of(path: str, environ: Mapping[str, str], index: int = 0) -> str:
    """``path``, with the number of a rank, the id of a child process or the number of a further device before its suffix: each session
    has a file of its own."""
    from multiprocessing import parent_process

    process = f"-rank{environ['LOCAL_RANK']}" if "LOCAL_RANK" in environ else f"-{os.getpid()}" if parent_process() is not None else ""
    stem, suffix = os.path.splitext(path)
    return f"{stem}{process}{f'-cuda{index}' if index else ''}{suffix}"


def summary(profile: Profile) -> list[str]:
    """Where the time went."""
    wall = profile.wall_ns
    script_ns = max(0, wall - profile.sending_ns - profile.waiting_ns)
    parts = {"in the script": script_ns, "sending": profile.sending_ns, "waiting": profile.waiting_ns}
    shares = ", ".join(f"{100 * part // wall} % {name}" for name, part in parts.items())
    device = f"the device at work for {100 * profile.device_ns // wall} % at least"
    lines = [f"{wall / 1e9:.1f} s: {shares}; {device}; {profile.n_ops} operations in {profile.n_batches} batches"]
    longest = sorted(profile.waits.items(), key=lambda item: -item[1][0])[:_LINES_MAX]
    if longest and profile.waiting_ns:
        lines.append("waits: " + ", ".join(f"{line or 'the end'} {ns / 1e9:.2f} s ({times}x)" for line, (ns, times) in longest))
    return lines


def advice(profile: Profile) -> list[str]:
    """What bounds the script, and what to change; the most important first."""
    wall, out = profile.wall_ns, []
    script_ns = max(0, wall - profile.sending_ns - profile.waiting_ns)
    often = max(profile.waits.items(), key=lambda item: item[1][1], default=("", (0, 0)))
    if profile.fallbacks:
        most = ", ".join(f"{name} ({count}x)" for name, count in Counter(profile.fallbacks).most_common(_LINES_MAX))
        out.append(f"operations that this machine computes, with their data sent both ways: {most}; see docs/differences.md")
    if profile.device_ns >= _MUCH * 2 * wall:
        out.append("the device is the limit: nothing to gain on this machine")
    elif profile.waiting_ns >= _MUCH * wall and profile.n_batches and often[1][1] >= profile.n_batches / 4:
        read = f"{often[0]} reads one {often[1][1]} times"
        out.append(f"waits for values are the limit: {read}; read it less often, for example every tenth step")
    elif script_ns >= _MUCH * 2 * wall and profile.n_ops >= 1_000:
        each = f"{script_ns / profile.n_ops / 1e3:.0f} us an operation"
        remedy = "repeat steps as CUDA graphs or compile the model (docs/how-to/repeat-steps.md)"
        out.append(f"the script's own thread is the limit, {each}; if most of that is recording, {remedy}")
    if profile.sending_ns >= _MUCH * wall:
        out.append(f"sending is the limit: {profile.upload_bytes >> 20} MiB of tensors; keep what does not change on the device")
    return out or ["nothing stands out"]
