"""What of a node's registration counts. A node writes it itself, so every part is bounded: by what is possible, and by what the node's key
was issued for. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from bus_schemas.events import DeviceFact, KeyIssued, NodeRegistered
from bus_schemas.subjects import is_token
from bus_schemas.texts import title_of

CORES_MAX: Final = 1 << 20
DEVICE_BYTES_MAX: Final = 1 << 50
_INDEX_MAX: Final = 1 << 31


def bounded(event: NodeRegistered, keys: Collection[KeyIssued] = ()) -> tuple[NodeRegistered, str]:
    """The registration as it counts, and why it is refused (then it has no devices and no groups) or empty.

    Texts for people are cut; devices whose index is out of range or taken are left out. ``keys``: those of the node that are not revoked.
    """
    texts = {"name": title_of(event.name), "address": title_of(event.address), "version": title_of(event.version)}
    why = _refusal(event) or _beyond(event, keys)
    if why:
        return replace(event, devices=(), groups=(), **texts), why
    devices: dict[int, DeviceFact] = {}
    for device in event.devices:
        if 0 <= device.index < _INDEX_MAX:
            devices.setdefault(device.index, replace(device, name=title_of(device.name), backend=title_of(device.backend)))
    return replace(event, devices=tuple(devices.values()), **texts), ""


def trusting(domains: Sequence[tuple[str, ...]], tenant: str) -> tuple[str, ...]:
    """The tenants of the trust domain of ``tenant``, in order; ``domains``: those that have several."""
    return next((tuple(sorted(set(members))) for members in domains if tenant in members), (tenant,))


def _refusal(event: NodeRegistered) -> str:
    bad = next((group for group in event.groups if not is_token(group)), None)
    if bad is not None:
        return f"registration refused: group {title_of(bad)[:64]!r} (NODE_GROUPS) is not 1 to 64 letters, digits, '-' or '_'"
    return ""


def _beyond(event: NodeRegistered, keys: Collection[KeyIssued]) -> str:
    """What in the registration no key of the node allows."""
    if not keys:
        return ""
    if all(key.groups is not None for key in keys):
        foreign = next((group for group in event.groups if not any(group in (key.groups or ()) for key in keys)), None)
        if foreign is not None:
            return (
                f"registration refused: the node's key is not for group {foreign} (NODE_GROUPS); make one with `wooly keys create --group`"
            )
    for device in event.devices:
        if not any(_fits(device, key) for key in keys):
            return f"registration refused: device {device.index} has more cores or memory than the node's key is for"
    return ""


def _fits(device: DeviceFact, key: KeyIssued) -> bool:
    return (not key.device_cores or device.cores <= key.device_cores) and (not key.device_mb or device.vram_bytes <= key.device_mb << 20)
