"""The addresses of one arena: small blocks in slabs of one size class each, larger ones in ranges of their own, found by best fit with
coalescing. Offsets only, no memory.

Rooms are the size classes of ``room_for``. A room of up to SMALL_BYTES comes from a slab, so that small blocks lie together and do not
cut up what large ones need; a slab goes back as a whole when its last block does.

Invariants: free ranges do not overlap, no two of them touch, and together with what was taken and not given back they cover the space.
Best fit keeps large ranges large (Knuth, The Art of Computer Programming 1, 2.5); among equal ranges the lowest is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, NamedTuple

from jit.memory.block import ALIGN_BYTES

SCRAP_BYTES: Final = 64 << 10
"""A free range below this is counted as lost: few tensors that matter fit into it."""
_SHIFT: Final = 48
_LOW: Final = (1 << _SHIFT) - 1


class Ranges:
    """The free part of [0, ``size``). ``free_bytes``: all of it; ``scrap_bytes``: what of it lies in ranges below SCRAP_BYTES."""

    __slots__ = ("_ends", "_lengths", "_order", "free_bytes", "scrap_bytes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = 0
        self.scrap_bytes = 0
        self._lengths: dict[int, int] = {}  # of the range that starts here
        self._ends: dict[int, int] = {}  # where the range that ends here starts
        self._order: list[int] = []  # length and start in one integer, ascending
        if size:
            self._put(0, size)

    @property
    def largest(self) -> int:
        """The longest free range."""
        return self._order[-1] >> _SHIFT if self._order else 0

    def take(self, nbytes: int) -> int | None:
        """The start of a range that was free and is so long; None when there is none."""
        at = bisect_left(self._order, nbytes << _SHIFT)
        if at == len(self._order):
            return None
        key = self._order.pop(at)
        start, length = key & _LOW, key >> _SHIFT
        self._forget(start, length)
        if length > nbytes:
            self._put(start + nbytes, length - nbytes)
        return start

    def give(self, start: int, nbytes: int) -> None:
        """The range is free again; it becomes one with its free neighbours."""
        before = self._ends.get(start)
        end = start + nbytes
        if before is not None:
            length = self._lengths[before]
            self._drop(before, length)
            start = before
        behind = self._lengths.get(end)
        if behind is not None:
            self._drop(end, behind)
            end += behind
        self._put(start, end - start)

    def cut(self, start: int, length: int) -> None:
        """Take exactly this free range."""
        self._drop(start, length)

    def listed(self) -> list[tuple[int, int]]:
        """(start, length) of every free range, by address."""
        return sorted(self._lengths.items())

    def _put(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._ends[start + length] = start
        insort(self._order, length << _SHIFT | start)
        self.free_bytes += length
        if length < SCRAP_BYTES:
            self.scrap_bytes += length

    def _drop(self, start: int, length: int) -> None:
        del self._order[bisect_left(self._order, length << _SHIFT | start)]
        self._forget(start, length)

    def _forget(self, start: int, length: int) -> None:
        del self._lengths[start]
        del self._ends[start + length]
        self.free_bytes -= length
        if length < SCRAP_BYTES:
            self.scrap_bytes -= length


SMALL_BYTES: Final = 4 << 10
SLAB_BYTES: Final = 64 << 10


class Move(NamedTuple):
    """``nbytes`` from ``source`` on go to ``target``; the two may overlap, with the target below."""

    source: int
    target: int
    nbytes: int


class _Slab:
    """Equal rooms in a row: ``next`` is the first that was never used, ``free`` those that were and are free."""

    __slots__ = ("free", "next", "room", "start", "used")

    def __init__(self, start: int, room: int) -> None:
        self.start, self.room = start, room
        self.next = 0
        self.used = 0
        self.free: list[int] = []

    @property
    def full(self) -> bool:
        return self.used == SLAB_BYTES // self.room

    def take(self) -> int:
        self.used += 1
        if self.free:
            return self.free.pop()
        self.next += 1
        return self.start + (self.next - 1) * self.room

    def give(self, offset: int) -> None:
        self.used -= 1
        self.free.append(offset)

    def live(self) -> list[int]:
        """Where blocks lie."""
        free = set(self.free)
        return [at for at in range(self.start, self.start + self.next * self.room, self.room) if at not in free]


class Addresses:
    """Of [0, ``size``). ``rooms_bytes``: the rooms that were taken and not given back."""

    def __init__(self, size: int) -> None:
        self.size = size // ALIGN_BYTES * ALIGN_BYTES
        self.ranges = Ranges(self.size)
        self.rooms_bytes = 0
        self._slabs: dict[int, _Slab] = {}
        self._starts: list[int] = []  # of the slabs, ascending
        self._open: dict[int, dict[int, _Slab]] = {}  # by room and start: slabs that are not full
        self._large: dict[int, int] = {}  # room by offset

    @property
    def free_bytes(self) -> int:
        """What is in no room and no slab."""
        return self.ranges.free_bytes

    @property
    def footprint_bytes(self) -> int:
        """What the rooms take: themselves, what is empty in their slabs, and scraps between blocks."""
        return self.size - self.ranges.free_bytes + self.ranges.scrap_bytes

    def take(self, room: int) -> int | None:
        """An address for a room; None when there is none."""
        if room > SMALL_BYTES:
            offset = self.ranges.take(room)
            if offset is not None:
                self._large[offset] = room
                self.rooms_bytes += room
            return offset
        slabs = self._open.get(room)
        slab = next(iter(slabs.values())) if slabs else self._new_slab(room)
        if slab is None:
            return None
        self.rooms_bytes += room
        at = slab.take()
        if slab.full:
            del self._open[room][slab.start]
        return at

    def give(self, offset: int, room: int) -> None:
        """The room is free again."""
        self.rooms_bytes -= room
        if room > SMALL_BYTES:
            del self._large[offset]
            self.ranges.give(offset, room)
            return
        slab = self._slabs[self._starts[bisect_right(self._starts, offset) - 1]]
        if slab.full:
            self._open.setdefault(room, {})[slab.start] = slab
        slab.give(offset)
        if not slab.used:
            self._drop_slab(slab)

    def _new_slab(self, room: int) -> _Slab | None:
        start = self.ranges.take(SLAB_BYTES)
        if start is None:
            return None
        slab = self._slabs[start] = _Slab(start, room)
        insort(self._starts, start)
        self._open.setdefault(room, {})[start] = slab
        return slab

    def _drop_slab(self, slab: _Slab) -> None:
        del self._slabs[slab.start]
        del self._starts[bisect_right(self._starts, slab.start) - 1]
        del self._open[slab.room][slab.start]
        self.ranges.give(slab.start, SLAB_BYTES)

    # --- making room
    def fits(self, room: int) -> bool:
        """Whether ``take`` would find an address."""
        if room > SMALL_BYTES:
            return self.ranges.largest >= room
        return bool(self._open.get(room)) or self.ranges.largest >= SLAB_BYTES

    def squeeze(self) -> list[Move]:
        """Small blocks out of the emptiest slabs into the fullest of their class; the emptied ones are free. The moves are disjoint."""
        moves: list[Move] = []
        for room in list(self._open):
            slabs = sorted(self._open[room].values(), key=lambda slab: slab.used)
            while len(slabs) > 1 and slabs[0].used <= sum(SLAB_BYTES // room - slab.used for slab in slabs[1:]):
                empty = slabs.pop(0)
                for source in empty.live():
                    target = slabs[-1].take()
                    moves.append(Move(source, target, room))
                    if slabs[-1].full:
                        del self._open[room][slabs.pop().start]
                self._drop_slab(empty)
        return moves

    def slide(self, room: int) -> list[Move]:
        """Move what lies between some free ranges down, so that they become one that holds ``room``: those of all neighbouring free ranges
        for which the fewest bytes move. Empty, and nothing changed, when all together are too small. In order of addresses, to be done in
        this order."""
        room = max(room, SLAB_BYTES) if room <= SMALL_BYTES else room
        first, last = _cheapest(self.ranges.listed(), room)
        if first == last:
            return []
        moves: list[Move] = []
        low, high = first[0], sum(last)
        units = sorted(u for u in (*self._large.items(), *((at, SLAB_BYTES) for at in self._starts)) if low <= u[0] < high)
        for start, length in self.ranges.listed():
            if low <= start < high:
                self.ranges.cut(start, length)
        at = low
        for start, length in units:
            moves.append(Move(start, at, length))
            self._moved(start, at)
            at += length
        self._starts = sorted(self._slabs)
        self.ranges.give(at, high - at)
        return moves

    def _moved(self, source: int, target: int) -> None:
        """A range of its own or a slab has another address now."""
        slab = self._slabs.pop(source, None)
        if slab is None:
            self._large[target] = self._large.pop(source)
            return
        self._slabs[target] = slab
        opened = self._open.get(slab.room, {})
        if opened.pop(source, None) is not None:
            opened[target] = slab
        slab.free = [at + target - source for at in slab.free]
        slab.start = target


def _cheapest(gaps: list[tuple[int, int]], room: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and last of neighbouring free ranges that together hold ``room``, with the fewest bytes between them; twice the same
    when there are none."""
    best = -1
    found = ((0, 0), (0, 0))
    first = held = 0
    for start, length in gaps:
        held += length
        while held - gaps[first][1] >= room:
            held -= gaps[first][1]
            first += 1
        between = start + length - gaps[first][0] - held
        if held >= room and (best < 0 or between < best):
            best = between
            found = (gaps[first], (start, length))
    return found
