"""What of a node's registration counts. A node writes it itself, so every part is bounded. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from bus_schemas.events import DeviceFact, NodeRegistered
from bus_schemas.subjects import is_token
from bus_schemas.texts import title_of

__all__ = ["CORES_MAX", "DEVICES_MAX", "DEVICE_BYTES_MAX", "GROUPS_MAX", "bounded"]

DEVICES_MAX: Final = 64
GROUPS_MAX: Final = 64
CORES_MAX: Final = 1 << 20
DEVICE_BYTES_MAX: Final = 1 << 50
_INDEX_MAX: Final = 1 << 31


def bounded(event: NodeRegistered) -> tuple[NodeRegistered, str]:
    """The registration without what no placement could name (a device's index that is out of range or taken) and with texts for people, and
    why it is refused: then it has no devices and no groups. Empty: it is not."""
    texts = {"name": title_of(event.name), "address": title_of(event.address), "version": title_of(event.version)}
    why = _refusal(event)
    if why:
        return replace(event, devices=(), groups=(), **texts), why
    devices: dict[int, DeviceFact] = {}
    for device in event.devices:
        if 0 <= device.index < _INDEX_MAX:
            devices.setdefault(device.index, replace(device, name=title_of(device.name), backend=title_of(device.backend)))
    return replace(event, devices=tuple(devices.values()), **texts), ""


def _refusal(event: NodeRegistered) -> str:
    if len(event.devices) > DEVICES_MAX:
        return f"registration refused: {len(event.devices)} devices, {DEVICES_MAX} at most; start several servers"
    if len(event.groups) > GROUPS_MAX:
        return f"registration refused: {len(event.groups)} groups (NODE_GROUPS), {GROUPS_MAX} at most"
    bad = next((group for group in event.groups if not is_token(group)), None)
    return (
        ""
        if bad is None
        else f"registration refused: group {title_of(bad)[:64]!r} (NODE_GROUPS) is not of 1 to 64 letters, digits, '-' or '_'"
    )
