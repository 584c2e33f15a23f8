"""The cluster as columns of integers, one row a device and one a node, in order of (node id, gpu), and holders of memory on each device.

A decision over thousands of devices reads the columns; the fold keeps them (``view``). A live placed task holds its VRAM on each of its
devices. An open session holds its quota, unless its task holds memory there for it.

Amounts are held within 64 TiB a holder and a device, priorities within 0-4, so that no sum leaves 64 bits whatever the log says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bus_schemas.registration import trusting
from scheduler.placement.states import PRIORITY_MAX

__all__ = [
    "Ints", "Flags", "Columns", "BYTES_MAX", "GPU", "PHYSICAL", "SCHEDULABLE", "PROMISED", "NOSWAP", "EXCLUSIVE", "HOLDERS", "UTILIZATION",
    "STARVATION", "USED", "DOMAIN", "SEVERAL", "LOST", "DRAINED", "GROUPS", "TRUST", "Hold", "Holdings", "domain_number", "trust_number",
]  # fmt: skip

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

BYTES_MAX: Final = 1 << 46
_DOMAINS_KEPT_MAX: Final = 1 << 16

GPU, PHYSICAL, SCHEDULABLE, PROMISED, NOSWAP, EXCLUSIVE, UTILIZATION, STARVATION, USED, DOMAIN, HOLDERS = range(11)
"""Columns of ``devices``; from HOLDERS on: how many hold memory, one column a priority (0-4). EXCLUSIVE: how many have it alone.
DOMAIN: the number of the trust domain that it serves, SEVERAL, or 0: none now, or it serves all beside each other."""
SEVERAL: Final = -1
_DEVICE_COLUMNS: Final = HOLDERS + PRIORITY_MAX + 1

LOST, DRAINED, GROUPS, TRUST = range(4)
"""Columns of ``nodes``. GROUPS: in how many groups it is. TRUST: the number of its division into trust domains (``trust_number``), 0: its
devices serve all tenants beside each other."""
_NODE_COLUMNS: Final = 4


class Columns:
    """``names``: node ids in order; ``offsets[i]`` to ``offsets[i + 1]``: the device rows of node i; ``node_of``: the node of each row."""

    __slots__ = ("devices", "index", "names", "node_of", "nodes", "offsets", "place_of")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.devices: Ints = np.zeros((_DEVICE_COLUMNS, 0), np.int64)
        self.nodes: Ints = np.zeros((_NODE_COLUMNS, 0), np.int64)
        self._rearranged(np.zeros(0, np.int64))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Columns)
            and self.names == other.names
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.devices, other.devices)
            and np.array_equal(self.nodes, other.nodes)
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def rows(self) -> int:
        return len(self.node_of)

    def row(self, node: str, gpu: int) -> int:
        """The row of a device, -1 when there is none."""
        at = self.index.get(node)
        if at is None:
            return -1
        first, end = int(self.offsets[at]), int(self.offsets[at + 1])
        guess = first + gpu
        if first <= guess < end and self.devices[GPU, guess] == gpu:
            return guess
        found = np.flatnonzero(self.devices[GPU, first:end] == gpu)
        return first + int(found[0]) if found.size else -1

    def span(self, node: str) -> slice:
        """The rows of a node that is here."""
        at = self.index[node]
        return slice(int(self.offsets[at]), int(self.offsets[at + 1]))

    def set_devices(self, node: str, devices: Sequence[tuple[int, int]]) -> bool:
        """A node has these devices: (gpu, physical bytes), by gpu. Whether rows were made anew, with sums of zero to be filled again."""
        known = node in self.index
        if known:
            rows = self.span(node)
            if self.devices[GPU, rows].tolist() == [gpu for gpu, _ in devices]:
                self.devices[PHYSICAL, rows] = [clamp_bytes(size) for _, size in devices]
                return False
        at = self.index[node] if known else bisect_left(self.names, node)
        first = int(self.offsets[at])
        end = int(self.offsets[at + 1]) if known else first
        fresh = np.zeros((_DEVICE_COLUMNS, len(devices)), np.int64)
        fresh[GPU] = [gpu for gpu, _ in devices]
        fresh[PHYSICAL] = [clamp_bytes(size) for _, size in devices]
        self.devices = np.concatenate((self.devices[:, :first], fresh, self.devices[:, end:]), axis=1)
        counts = np.diff(self.offsets)
        if known:
            counts[at] = len(devices)
        else:
            self.names.insert(at, node)
            self.nodes = np.insert(self.nodes, at, 0, axis=1)
            counts = np.insert(counts, at, len(devices))
        self._rearranged(counts)
        return True

    def set_percent(self, node: str, percent: int) -> None:
        rows = self.span(node)
        self.devices[SCHEDULABLE, rows] = self.devices[PHYSICAL, rows] * (100 + percent) // 100

    def set_node(self, node: str, column: int, value: int) -> None:
        self.nodes[column, self.index[node]] = value

    def hold(self, row: int, sign: int, nbytes: int, noswap_bytes: int, exclusive: bool, priority: int) -> None:
        """Add a holder of memory on a device (``sign`` 1), or remove it (-1). The caller has clamped the values."""
        devices = self.devices
        devices[PROMISED, row] += sign * nbytes
        devices[HOLDERS + priority, row] += sign
        if noswap_bytes:
            devices[NOSWAP, row] += sign * noswap_bytes
        if exclusive:
            devices[EXCLUSIVE, row] += sign

    def serve(self, row: int, domain: int) -> None:
        """Something of this trust domain is on the device, beside what is there."""
        self.devices[DOMAIN, row] = domain if self.devices[DOMAIN, row] in (0, domain) else SEVERAL

    def measure(self, row: int, utilization: int, starvation: int, used: int) -> None:
        self.devices[UTILIZATION : USED + 1, row] = (clamp_bytes(utilization), clamp_bytes(starvation), clamp_bytes(used))

    def _rearranged(self, counts: Ints) -> None:
        self.index = {name: at for at, name in enumerate(self.names)}
        self.offsets: Ints = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
        self.node_of: Ints = np.repeat(np.arange(len(self.names), dtype=np.int64), counts)
        self.place_of: Ints = np.arange(self.rows, dtype=np.int64) - self.offsets[self.node_of]


@lru_cache(_DOMAINS_KEPT_MAX)
def domain_number(domains: tuple[tuple[str, ...], ...], tenant: str) -> int:
    """Of a tenant's trust domain where ``domains`` have several tenants and every other tenant is its own: above 0, and the same for the
    same tenants everywhere."""
    return _number(trusting(domains, tenant))


def trust_number(domains: tuple[tuple[str, ...], ...] | None) -> int:
    """Of a node's division into trust domains: above 0; 0: it has none."""
    return 0 if domains is None else _number(tuple("\n".join(members) for members in domains))


def _number(names: tuple[str, ...]) -> int:
    return (int.from_bytes(blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=8).digest()) >> 1) or 1


def clamp_bytes(value: int) -> int:
    return min(max(value, 0), BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Hold:
    """One holder on one device. ``priority``: 0-4."""

    node: str
    gpu: int
    nbytes: int
    noswap_bytes: int
    exclusive: bool
    priority: int

    @staticmethod
    def of(node: str, gpu: int, nbytes: int, *, noswap: bool, exclusive: bool, priority: int) -> Hold:
        """Within the limits of the columns, whatever the log says."""
        size = clamp_bytes(nbytes)
        return Hold(node, gpu, size, size if noswap else 0, exclusive, min(max(priority, 0), PRIORITY_MAX))


@dataclass(slots=True)
class Holdings:
    """``held``: by holder, (kind, id) with kind ``task`` or ``session``. ``freed``: the nodes on which a holder released memory, with the
    number of the last release; ``frees`` counts the releases."""

    columns: Columns
    frees: int = 0
    freed: dict[str, int] = field(default_factory=dict)
    held: dict[tuple[str, str], tuple[Hold, ...]] = field(default_factory=dict)

    def set(self, kind: str, name: str, holds: Iterable[Hold]) -> None:
        """From now on this holder holds exactly that."""
        after = tuple(holds)
        before = self.held.get((kind, name), ())
        if before == after:
            return
        self._add(before, -1)
        for hold in before:
            if hold not in after:
                self.free(hold.node)
        self._add(after, 1)
        if after:
            self.held[kind, name] = after
        else:
            self.held.pop((kind, name), None)

    def free(self, node: str) -> None:
        """Something on this node may make room."""
        self.frees += 1
        self.freed[node] = self.frees

    def freed_since(self, number: int) -> list[str]:
        """The nodes on which something may have made room after the ``number``-th time."""
        return [node for node, at in self.freed.items() if at > number]

    def refill(self, kind: str, name: str, node: str) -> None:
        """The rows of ``node`` were made anew: add what this holder has there."""
        self._add((hold for hold in self.held.get((kind, name), ()) if hold.node == node), 1)

    def _add(self, holds: Iterable[Hold], sign: int) -> None:
        for hold in holds:
            row = self.columns.row(hold.node, hold.gpu)
            if row >= 0:
                self.columns.hold(row, sign, hold.nbytes, hold.noswap_bytes, hold.exclusive, hold.priority)
