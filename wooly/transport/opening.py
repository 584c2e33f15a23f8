"""Finding a node and opening a session on it."""

from __future__ import annotations

import secrets
import time
from typing import Final

import msgspec

from bus_schemas import subjects
from bus_schemas.session import NodeInfo, OpenSession, SessionOpened
from bus_schemas.terms import TaskTerms
from wooly.config import Config
from wooly.errors import ConfigError, NoServerError, ProtocolError, from_fault
from wooly.transport import controller
from wooly.transport.bus import BusThread, NoAnswer
from wooly.transport.controller import Place

__all__ = ["discover", "open_on_node"]

_DISCOVER_S: Final = 5.0
_OPEN_S: Final = 4.0
_RETRY_S: Final = 5.0
_RETRY_PAUSE_S: Final = 0.2
_VERSION: Final = "0.1.0"

_encode: Final = msgspec.msgpack.Encoder().encode
_node_info: Final = msgspec.msgpack.Decoder(NodeInfo)
_opened: Final = msgspec.msgpack.Decoder(SessionOpened)


def discover(bus: BusThread, deadline_s: float = _DISCOVER_S) -> NodeInfo:
    """The first node that answers. Raises NoServerError when none does."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return _node_info.decode(bus.call(bus.request(subjects.discover(bus.principal), b"", 1.0), 2.0))
        except (NoAnswer, TimeoutError):
            if time.monotonic() > deadline:
                raise NoServerError("the bus answers, but no node is on it; start one with: wooly server") from None
            time.sleep(0.1)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"a node's answer is unreadable ({error}); client and node are of different versions") from error


def open_on_node(bus: BusThread, config: Config, title: str, device: int, traceparent: str = "") -> SessionOpened:
    """Open a session for the script's device ``device``, in this trace; the node's answer. Raises what ``open_session`` raises."""
    place = controller.place_for(config, title, device) if config.controller_url else _own_choice(bus, config, title)
    node, gpus = place.node, place.gpus
    if not 0 <= device < len(gpus):
        raise ConfigError(f"device {device} does not exist: this task has {len(gpus)} (GPU_COUNT, GPUS)")
    request = OpenSession(
        session=subjects.session_name(bus.principal, secrets.token_urlsafe(12)),
        gpus=(gpus[device],),
        dedup=config.weights_dedup,
        client_version=_VERSION,
        vram_wait_ms=config.vram_wait_ms,
        traceparent=traceparent,
        **msgspec.structs.asdict(place.terms),
    )
    opened = _open(bus, node, request)
    deadline = time.monotonic() + _RETRY_S
    while opened.fault is not None and not opened.fault.fatal and time.monotonic() < deadline:
        time.sleep(_RETRY_PAUSE_S)  # the device is being restarted
        opened = _open(bus, node, request)
    if opened.fault is not None:
        raise from_fault(opened.fault.name, opened.fault.message, opened.fault.places)
    if opened.node is None:
        raise ProtocolError("the node opened a session without identifying itself; client and node are of different versions")
    return msgspec.structs.replace(opened, task=place.terms.task)


def _own_choice(bus: BusThread, config: Config, title: str) -> Place:
    """Without a controller: the first node that answers, with the terms of the configuration."""
    terms = TaskTerms(
        tenant=config.tenant,
        title=title,
        priority=config.priority,
        vram_bytes=config.vram_quota_bytes,
        exclusive=config.gpu_mode == "Exclusive",
        swap=config.swap_from_vram,
        weight=config.weight,
        sla_ms_p99=config.sla_ms_p99,
        pace_percent=config.pace_percent,
    )
    return Place(discover(bus).node, config.device_indices, terms)


def _open(bus: BusThread, node: str, request: OpenSession) -> SessionOpened:
    """Ask twice: the node recognises a repeated request."""
    for last in (False, True):
        try:
            asking = bus.request(subjects.node_request(node, "open", bus.principal), _encode(request), _OPEN_S)
            return _opened.decode(bus.call(asking, _OPEN_S + 1))
        except (NoAnswer, TimeoutError):
            if last:
                raise NoServerError(f"node {node} does not answer; is it running, and on this bus?") from None
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the node's answer is unreadable ({error}); client and node are of different versions") from error
    raise AssertionError("unreachable: the second try returns or raises")
