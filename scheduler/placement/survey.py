"""All devices at once: which are refused for what, by columns. What is found is exactly what ``feasible`` says one at a time, and the
tests hold it to that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement import reasons as why
from scheduler.placement.columns import BYTES_MAX, Columns, Flags, Ints
from scheduler.placement.state import Shape
from scheduler.placement.view import ClusterView

__all__ = ["Survey", "survey", "CODES", "FITS", "NODE_REFUSED", "Freed"]

CODES: Final = (
    "", why.NODE_LOST, why.NODE_DRAINED, why.NOT_IN_GROUP, why.GROUP_ONLY, why.NO_DEVICE, why.DEVICE_EXCLUSIVE, why.EXCLUSIVE_CONFLICT,
    why.VRAM_SHORT, why.VRAM_PHYSICAL_SHORT, why.RESERVED, why.GPU_COUNT, why.NODE_LEFT, why.OTHER_DOMAIN,
)  # fmt: skip
"""The name of each code; 0 is no refusal."""
_CODE: Final = {name: code for code, name in enumerate(CODES)}
FITS: Final = 0
NODE_REFUSED: Final = len(CODES)
"""The code of a device whose node is refused as a whole."""


@dataclass(frozen=True, slots=True)
class Survey:
    """``node_code``: of each node; ``code``: of each device row. ``fits``: rows without refusal. ``fit_counts``: how many devices of each
    node would do, before their number was asked for. ``need``: bytes on each device."""

    columns: Columns
    need: int
    node_code: Ints
    code: Ints
    fits: Ints
    fit_counts: Ints

    def counts(self) -> dict[str, int]:
        """How often each reason was given, of nodes as a whole and of devices."""
        found = np.bincount(self.code, minlength=NODE_REFUSED + 1)[:NODE_REFUSED]
        found = found + np.bincount(self.node_code, minlength=NODE_REFUSED)
        return {CODES[code]: int(found[code]) for code in range(1, NODE_REFUSED) if found[code]}


def survey(view: ClusterView, task: TaskSubmitted, kept: Mapping[tuple[str, int], str], relaxed: frozenset[str] = frozenset()) -> Survey:
    """Look at everything for ``task``. ``kept``: devices it may not have because they are reserved. ``relaxed``: reasons of nodes that are
    not held against them."""
    columns = view.columns
    need = clamped_need(task.vram_bytes)
    node_code = _nodes(view, task, relaxed)
    code = _devices(view, task, need)
    for node, gpu in kept:
        row = columns.row(node, gpu)
        if row >= 0 and code[row] == FITS:
            code[row] = _CODE[why.RESERVED]
    code[(node_code != FITS)[columns.node_of]] = NODE_REFUSED
    fit = code == FITS
    fit_counts = np.bincount(columns.node_of[fit], minlength=len(columns.names))
    if task.gpu_count > 1:
        fit &= (fit_counts >= task.gpu_count)[columns.node_of]
        code[(code == FITS) & ~fit] = _CODE[why.GPU_COUNT]
    return Survey(columns, need, node_code, code, np.flatnonzero(fit), fit_counts)


def _nodes(view: ClusterView, task: TaskSubmitted, relaxed: frozenset[str]) -> Ints:
    """What is held against whole nodes; the first reason in the order of ``feasible.refuse_node``."""
    columns = view.columns
    code = np.zeros(len(columns.names), np.int64)
    code[np.diff(columns.offsets) == 0] = _CODE[why.NO_DEVICE]
    if task.groups:
        if why.NOT_IN_GROUP not in relaxed:
            code[~_members(view, task.groups)] = _CODE[why.NOT_IN_GROUP]
    elif why.GROUP_ONLY not in relaxed:
        code[columns.nodes[col.GROUPS] > 0] = _CODE[why.GROUP_ONLY]
    leaving = view.leaving(task)
    if leaving is not None:
        left = np.zeros(len(columns.names), np.bool_)
        left[[at for at, name in enumerate(columns.names) if not leaving.admits(name)]] = True
        code[left] = _CODE[why.NODE_LEFT]
    if why.NODE_DRAINED not in relaxed:
        code[columns.nodes[col.DRAINED] > 0] = _CODE[why.NODE_DRAINED]
    if why.NODE_LOST not in relaxed:
        code[columns.nodes[col.LOST] > 0] = _CODE[why.NODE_LOST]
    return code


def _members(view: ClusterView, groups: tuple[str, ...]) -> Flags:
    """Which nodes are in any of the groups."""
    inside = np.zeros(len(view.columns.names), np.bool_)
    for group in groups:
        inside[[view.columns.index[node] for node in view.membership.members(group)]] = True
    return inside


def _devices(view: ClusterView, task: TaskSubmitted, need: int) -> Ints:
    """What is held against single devices; the first reason in the order of ``feasible.refuse_device``."""
    columns, device = view.columns, view.columns.devices
    code = np.zeros(columns.rows, np.int64)
    if task.noswap:
        code[need > free_physical(columns)] = _CODE[why.VRAM_PHYSICAL_SHORT]
    code[need > free(columns)] = _CODE[why.VRAM_SHORT]
    if task.exclusive:
        code[device[col.HOLDERS :].any(axis=0)] = _CODE[why.EXCLUSIVE_CONFLICT]
    code[device[col.EXCLUSIVE] > 0] = _CODE[why.DEVICE_EXCLUSIVE]
    served = device[col.DOMAIN]
    for trust, domains in view.divisions.items():
        other = (served != 0) & (served != col.domain_number(domains, task.tenant))
        code[other & (columns.nodes[col.TRUST] == trust)[columns.node_of]] = _CODE[why.OTHER_DOMAIN]
    return code


class Freed:
    """The devices of some nodes, to ask for many shapes whether one of them could fit there. Says yes too often (it asks for no group,
    no trust domain and no reservation), never no wrongly."""

    def __init__(self, view: ClusterView, nodes: Iterable[str]) -> None:
        columns = view.columns
        inside = np.zeros(len(columns.names), np.bool_)
        inside[[columns.index[node] for node in nodes if node in columns.index]] = True
        self._rows = np.flatnonzero(inside[columns.node_of])
        self._node_of = columns.node_of[self._rows]
        self._free = free(columns)[self._rows]
        self._physical = free_physical(columns)[self._rows]
        self._held: Flags = np.any(columns.devices[col.HOLDERS :, self._rows] > 0, axis=0)
        self._alone: Flags = columns.devices[col.EXCLUSIVE, self._rows] > 0

    def may_fit(self, shape: Shape) -> bool:
        nbytes, gpu_count, exclusive, noswap, *_ = shape
        if not len(self._rows):
            return False
        fit = ((self._physical if noswap else self._free) >= clamped_need(nbytes)) & ~(self._held if exclusive else self._alone)
        if gpu_count <= 1:
            return bool(fit.any())
        return bool((np.bincount(self._node_of[fit], minlength=1) >= gpu_count).any())


def clamped_need(nbytes: int) -> int:
    """Bytes asked for, within what a column can be compared with."""
    return min(max(nbytes, 0), BYTES_MAX << 1)


def free(columns: Columns) -> Ints:
    """Capacity.free_bytes of every device."""
    left: Ints = np.maximum(columns.devices[col.SCHEDULABLE] - columns.devices[col.PROMISED], 0)
    return left


def free_physical(columns: Columns) -> Ints:
    """Capacity.free_physical_bytes of every device."""
    device = columns.devices
    taken = np.maximum(device[col.NOSWAP], device[col.USED])
    left: Ints = np.maximum(np.minimum(free(columns), device[col.PHYSICAL] - taken), 0)
    return left
