"""Streams and events: a device runs everything in the order it was issued, so every stream of it is the same queue under its own name.
Between devices data travels over this process, which waits for it.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from copy import copy
from typing import Any, ClassVar, Final, Self

import torch

from wooly.device.backend import is_our_device, is_ours
from wooly.device.face.api import Face, overridable, put, put_all
from wooly.device.face.devices import current, make_current, number_of, ours

__all__ = ["Stream", "Event", "patch"]

_ids: Final = itertools.count(1)
_PRIVATE_USE: Final = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A name for the one queue. Work issued on any stream is done in program order, so waiting between streams is already true."""

    _face: ClassVar[Face]

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Self:
        if "stream_id" in kwargs:
            stream_id, index = kwargs["stream_id"], kwargs.get("device_index", 0)
        else:
            stream_id, index = next(_ids), number_of(device)
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=_PRIVATE_USE)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self._priority = max(-5, min(priority, 0))  # CUDA maps what is outside its range to the nearest

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        return (0, -5)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stub says attribute; in C++ it is a property
        return torch.device("cuda", self.device_index)

    @property
    def priority(self) -> int:
        return self._priority

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def synchronize(self) -> None:
        self._face.synchronize()

    def query(self) -> bool:
        """True: everything issued is done. Asking waits for it, so that a loop around this ends."""
        self._face.synchronize()
        return True

    def wait_event(self, event: Any) -> None:
        """The one queue is in order already."""

    def wait_stream(self, stream: Any) -> None:
        """The one queue is in order already."""

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        stack: list[tuple[Stream, Stream]] = _current.__dict__.setdefault("stack", [])
        stack.append((_current_stream(), _stream_of(self.device_index)))
        _set_current(self)
        return self

    def __exit__(self, *exc: object) -> None:
        here, there = _current.stack.pop()
        _set_current(there)
        _set_current(here)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream of this process by its ``cuda_stream``, as libraries hand it on; one that other code made on a local device is refused."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Self:
        if not 0 <= stream_ptr < next(copy(_ids)):
            raise NotImplementedError("torch.cuda.ExternalStream: a stream of this machine means nothing on a remote device")
        return super().__new__(cls, stream_id=stream_ptr, device_index=number_of(device))

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device)


class Event:
    """A point in the queue. With ``enable_timing`` recording waits for the work before it, so that the times between events are true."""

    _face: ClassVar[Face]

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("torch.cuda.Event(interprocess=True): each process has its own session on the device")
        self.enable_timing = enable_timing
        self.device = torch.device("cuda", current())
        self.cuda_event = 0
        self._recorded = False
        self._done_s: float | None = None

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        raise NotImplementedError("torch.cuda.Event.from_ipc_handle: each process has its own session on the device")

    def record(self, stream: Any = None) -> None:
        self._recorded = True
        self.device = (stream or _current_stream()).device
        if self.enable_timing:
            self._face.synchronize()
            self._done_s = time.perf_counter()
        else:
            self._face.flush()
            self._done_s = None

    def wait(self, stream: Any = None) -> None:
        """The one queue is in order already."""

    def query(self) -> bool:
        """True: the work before the event is done. Asking waits for it, so that a loop around this ends."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self._recorded and self._done_s is None:
            self._face.synchronize()
            self._done_s = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._done_s is None or end_event._done_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._done_s - self._done_s) * 1e3

    def ipc_handle(self) -> bytes:
        raise NotImplementedError("torch.cuda.Event.ipc_handle: each process has its own session on the device")

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._recorded else 'uninitialized'}>"


class _Generic(type):
    """Metaclass of what users call ``torch.Stream`` and ``torch.Event``: for our device it makes torch.cuda's, and both are instances."""

    kind: type
    shown: type

    def __call__(cls, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and not isinstance(device, int) and not is_our_device(torch.device(device)):
            return cls.kind(device, **kwargs)
        return cls.shown(**kwargs) if cls.shown is Event else cls.shown(device, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.kind | cls.shown)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.kind | cls.shown)


_current: Final = threading.local()


def _current_stream() -> Stream:
    return _stream_of(current())


def _stream_of(number: int) -> Stream:
    """The one that this thread uses on a device."""
    streams: dict[int, Stream] = _current.__dict__.setdefault("streams", {})
    if number not in streams:
        streams[number] = Stream(stream_id=0, device_index=number)
    return streams[number]


def _set_current(stream: Stream) -> None:
    """Its device becomes the current one too."""
    make_current(stream.device_index)
    _current.__dict__.setdefault("streams", {})[stream.device_index] = stream


def patch(face: Face) -> None:
    """Replace torch.cuda's streams and events."""
    Stream._face = Event._face = face

    def current_stream(device: Any = None) -> Stream:
        return _stream_of(number_of(device))

    def default_stream(device: Any = None) -> Stream:
        return Stream(stream_id=0, device_index=number_of(device))

    def set_stream(stream: Any) -> None:
        if stream is not None:
            _set_current(stream)

    def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        _set_current(Stream(stream_id=stream_id, device_index=device_index))

    values = {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "_set_stream_by_id": set_stream_by_id,
    }
    put_all((torch.cuda, torch.cuda.streams), values)
    put(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)

    put(torch, "Stream", _Generic("Stream", (), {"__module__": "torch", "kind": torch.Stream, "shown": Stream}))
    put(torch, "Event", _Generic("Event", (), {"__module__": "torch", "kind": torch.Event, "shown": Event}))

    original = torch.Tensor.record_stream

    @overridable(original)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        # Memory is given back in queue order: nothing to remember.
        if not is_ours(self):
            original(self, s)

    put(torch.Tensor, "record_stream", record_stream)
    assert ours().type, "the backend is registered before the face is put on"
