"""``torch.profiler`` with the device's work: each batch that ran while it recorded is an event of device type CUDA, in tables, lists of
events and Chrome traces.

A batch is what a kernel is on a GPU: it has no times of its parts. Its event is named by its operations and ends when its answer came; its
length is the core time that the node measured, on all cores of the device (wooly.profiling).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from torch._C._autograd import DeviceType
from torch.autograd import profiler, profiler_util

from wooly.device.backend import SHOWN
from wooly.device.face.api import Face, put, wrapping
from wooly.link import Link, LinkWrapper
from wooly.profiling import Batch, ProfiledLink

_TRACE_PID: Final = 1 << 20
"""Of the first device, in Chrome traces; above every process's."""


class _Recording:
    """What passes through the links of all devices from now on."""

    def __init__(self, face: Face) -> None:
        self.links: dict[int, ProfiledLink] = {}
        self.unix_ns = time.time_ns() - time.perf_counter_ns()
        self._stops = ExitStack()
        for index, api in tuple(face.apis.items()):
            api.flush()
            self._stops.callback(api.watch(lambda link, index=index: self._wrap(index, link)))  # type: ignore[misc]  # bound now

    def _wrap(self, index: int, link: Link) -> LinkWrapper:
        profiled = self.links[index] = ProfiledLink(link)
        self._stops.callback(profiled.listen())
        return profiled

    def stop(self) -> None:
        self._stops.close()

    def events(self) -> Iterator[tuple[int, Batch, int, int]]:
        """(device, batch, beginning, end), times in Unix nanoseconds."""
        for index, link in self.links.items():
            for batch, began_ns in link.profile.at_work():
                yield index, batch, began_ns + self.unix_ns, batch.done_ns + self.unix_ns


def _name(batch: Batch) -> str:
    more = ", ..." if batch.n_ops > len(batch.names) else ""
    return f"batch of {batch.n_ops}: {', '.join(batch.names)}{more}" if batch.names else "copies"


def patch(face: Face) -> None:
    owner: Any = profiler.profile
    make_event: Any = profiler_util.FunctionEvent  # torch does not annotate its arguments
    init, start, leave, parse, export = (
        getattr(owner, name) for name in ("__init__", "_start_trace", "__exit__", "_parse_kineto_results", "export_chrome_trace")
    )

    @wrapping(init)
    def begin(self: Any, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None, **kwargs: Any) -> None:
        if use_device != SHOWN and not use_cuda:
            init(self, enabled, use_device=use_device, **kwargs)
            return
        # Asked for CUDA's timeline torch would warn at every operation; asked for neither, it refuses.
        init(self, enabled, **kwargs | {"use_cpu": True})
        if self.enabled:
            self.use_device, self._wooly_alone = SHOWN, not kwargs.get("use_cpu", True)

    @wrapping(start)
    def start_trace(self: Any) -> None:
        if self.use_device == SHOWN:
            self._wooly = _Recording(face)
        start(self)

    @wrapping(leave)
    def stop_trace(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)  # it waits for the device
        finally:
            if hasattr(self, "_wooly"):
                self._wooly.stop()

    @wrapping(parse)
    def parsed(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        events: list[Any] = parse(self, result, *args, **kwargs)
        if getattr(self, "_wooly_alone", False):
            events.clear()
        begin_ns, last = result.trace_start_ns(), max((event.id for event in events), default=0)
        for index, batch, from_ns, to_ns in _of(self):
            last += 1
            events.append(
                make_event(
                    id=last,
                    name=_name(batch),
                    trace_name=_name(batch),
                    thread=index,
                    start_us=(from_ns - begin_ns) / 1e3,
                    end_us=(to_ns - begin_ns) / 1e3,
                    stack=[batch.line] if batch.line else [],
                    use_device=SHOWN,
                    device_type=DeviceType.CUDA,
                    device_index=index,
                    device_resource_id=0,
                )
            )
        events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return events

    @wrapping(export)
    def export_chrome_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(self, path, *args, **kwargs)
        found = list(_of(self))
        if found:
            _add_to_trace(path, found)
        return result

    for name, function in {
        "__init__": begin, "_start_trace": start_trace, "__exit__": stop_trace, "_parse_kineto_results": parsed,
        "export_chrome_trace": export_chrome_trace,
    }.items():  # fmt: skip
        put(owner, name, function)


def _of(profile: Any) -> Iterator[tuple[int, Batch, int, int]]:
    recording: _Recording | None = getattr(profile, "_wooly", None)
    return recording.events() if recording is not None else iter(())


def _add_to_trace(path: Any, found: list[tuple[int, Batch, int, int]]) -> None:
    """Write the batches into a file of Kineto's, whose times are microseconds after ``baseTimeNanoseconds``."""
    with open(path) as file:
        trace = json.load(file)
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    events = trace["traceEvents"]
    for index in sorted({index for index, *_ in found}):
        name = {"name": f"{SHOWN}:{index} (Wooly)"}
        events.append({"ph": "M", "name": "process_name", "pid": _TRACE_PID + index, "tid": 0, "ts": 0, "args": name})
    for index, batch, from_ns, to_ns in found:
        at_us, length_us = (from_ns - base_ns) / 1e3, (to_ns - from_ns) / 1e3
        args = {"operations": batch.n_ops, "line": batch.line, "core us": batch.core_ns / 1e3}
        common = {"ph": "X", "cat": "kernel", "name": _name(batch), "pid": _TRACE_PID + index, "tid": 0}
        events.append({**common, "ts": at_us, "dur": length_us, "args": args})
    with open(path, "w") as file:
        json.dump(trace, file)
