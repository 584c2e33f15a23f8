"""Addresses against a model that knows only which intervals are taken, and an arena against the bytes its blocks should have."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jit.errors import OutOfMemory
from jit.memory import Arena, Block, Capacity, HostMemory, SpaceMemory, room_for
from jit.memory.addresses import SCRAP_BYTES, SLAB_BYTES, SMALL_BYTES, Addresses, Ranges

SIZE = 1 << 20
SIZES = st.one_of(st.integers(0, 300), st.integers(300, 8 << 10), st.integers(8 << 10, 300 << 10))
STEPS = st.lists(st.tuples(st.sampled_from(["take", "take", "give", "move"]), SIZES, st.integers(0, 1 << 30)), max_size=120)


class Intervals:
    """The model: every taken interval in one list."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def gaps(self) -> list[tuple[int, int]]:
        found, at = [], 0
        for start, length in [*sorted(self.taken), (SIZE, 0)]:
            if start > at:
                found.append((at, start - at))
            at = start + length
        return found


@given(STEPS)
def test_ranges_are_the_gaps_between_what_is_taken(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = Ranges(SIZE), Intervals()
    for what, nbytes, choice in steps:
        if what == "give" and model.taken:
            ranges.give(*model.taken.pop(choice % len(model.taken)))
        elif nbytes:
            fitting = [gap for gap in model.gaps() if gap[1] >= nbytes]
            start = ranges.take(nbytes)
            assert start == (min(fitting, key=lambda gap: (gap[1], gap[0]))[0] if fitting else None)
            if start is not None:
                model.taken.append((start, nbytes))
        gaps = model.gaps()
        assert ranges.listed() == gaps
        assert ranges.free_bytes == sum(length for _, length in gaps)
        assert ranges.scrap_bytes == sum(length for _, length in gaps if length < SCRAP_BYTES)
        assert ranges.largest == max((length for _, length in gaps), default=0)


@given(STEPS)
def test_no_two_rooms_overlap_however_they_move(steps: list[tuple[str, int, int]]) -> None:
    """``where`` follows the moves; what a move carries is what ``where`` says."""
    addresses = Addresses(SIZE)
    where: dict[int, tuple[int, int]] = {}
    for number, (what, nbytes, choice) in enumerate(steps):
        if what == "take":
            room = room_for(nbytes)
            fits = addresses.fits(room)
            offset = addresses.take(room)
            assert fits == (offset is not None)
            if offset is not None:
                where[number] = (offset, room)
        elif what == "give" and where:
            addresses.give(*where.pop(list(where)[choice % len(where)]))
        elif what == "move":
            for source, target, length in addresses.squeeze():
                (key,) = [key for key, place in where.items() if place == (source, length)]
                where[key] = (target, length)
            wanted = max(room_for(nbytes), SLAB_BYTES)
            if not addresses.fits(wanted):
                enough = addresses.free_bytes >= wanted
                moves = addresses.slide(wanted)
                assert bool(moves) == enough == addresses.fits(wanted)
                for source, target, length in moves:
                    assert target <= source
                    for key, (at, room) in where.items():
                        if source <= at < source + length:
                            where[key] = (at + target - source, room)
        end = 0
        for offset, room in sorted(where.values()):
            assert offset >= end and offset % 64 == 0
            end = offset + room
        assert end <= addresses.size
        assert addresses.rooms_bytes == sum(room for _, room in where.values())
        assert addresses.rooms_bytes <= addresses.footprint_bytes <= addresses.size
    for offset, room in where.values():
        addresses.give(offset, room)
    assert addresses.free_bytes == addresses.ranges.largest == addresses.size and addresses.footprint_bytes == 0


@given(STEPS)
@settings(max_examples=50)
def test_blocks_keep_their_bytes_and_free_memory_has_none(steps: list[tuple[str, int, int]]) -> None:
    memory = HostMemory(SIZE)
    arena = Arena(memory)
    live: list[tuple[Block, int]] = []
    for number, (what, nbytes, choice) in enumerate(steps):
        if what == "take":
            block = Block(room_for(nbytes), None, 0, nbytes, np.zeros(0, np.uint8))
            if arena.place(block):
                assert not block.data.any() and block.data.size == nbytes and block.address % 64 == 0
                block.data[:] = number % 251 + 1
                live.append((block, number % 251 + 1))
        elif what == "give" and live:
            arena.drop(live.pop(choice % len(live))[0])
        elif what == "move":
            arena.make_room(room_for(nbytes))
        for block, value in live:
            assert (block.data == value).all() and block.data.size == block.nbytes
    for block, _ in live:
        arena.drop(block)
    rest = Block(SIZE, None, 0, SIZE, np.zeros(0, np.uint8))
    assert arena.place(rest) and not rest.data.any()


@given(
    st.lists(
        st.tuples(st.sampled_from(["alloc", "alloc", "free", "park", "unpark", "share", "write", "clear"]), SIZES, st.integers(0, 1 << 30)),
        max_size=80,
    )
)
@settings(max_examples=50)
def test_what_spaces_hold_is_what_was_asked_for(steps: list[tuple[str, int, int]]) -> None:
    """Three spaces of one small device against a model of bytes: contents, sizes and the account, whatever fits or does not."""
    capacity = Capacity(SIZE)
    spaces = [SpaceMemory(capacity) for _ in range(3)]
    held: dict[tuple[int, int], tuple[int, int | None, object]] = {}  # (space, key): size, value (None: parked), its block
    for key, (what, nbytes, choice) in enumerate(steps):
        at = choice % 3
        space = spaces[at]
        mine = [name for name in held if name[0] == at]
        name = mine[choice // 3 % len(mine)] if mine else None
        try:
            if what == "alloc":
                block = space.alloc(key, nbytes)
                assert not block.data.any()
                block.data[:] = key % 251 + 1
                held[at, key] = (nbytes, key % 251 + 1, block)
            elif what == "clear" and choice % 4 == 0:
                space.clear()
                for gone in mine:
                    del held[gone]
            elif name is None:
                continue
            elif what == "free":
                space.free(name[1])
                del held[name]
            elif what == "park" and held[name][1] is not None and held[name][2] is space[name[1]] and name[1] not in space._shared:
                space.park(name[1])
                held[name] = (held[name][0], None, object())
            elif what == "unpark" and held[name][1] is None:
                space.unpark(name[1])
                assert not space[name[1]].data.any()
                space[name[1]].data[:] = 7
                held[name] = (held[name][0], 7, space[name[1]])
            elif what == "share" and held[name][1] is not None:
                other = (at + choice // 7) % 3
                spaces[other].attach(key, space.share(name[1]))
                held[other, key] = held[name]
            elif what == "write" and held[name][1] is not None:
                block = space.writable(name[1], 0, held[name][0])
                block.data[:] = 9
                held[name] = (held[name][0], 9, block)
        except OutOfMemory:
            assert (
                sum({id(on): n for n, value, on in held.values() if value is not None}.values()) + max(nbytes, 0) > SIZE or what != "alloc"
            )
        for (number, one), (size, value, on) in held.items():
            assert spaces[number].size(one) == size
            if value is not None:
                assert spaces[number][one] is on and (spaces[number][one].data == value).all()
        assert capacity.used_bytes == sum({id(on): n for n, value, on in held.values() if value is not None}.values())
        for number, one_space in enumerate(spaces):
            assert one_space.resident_bytes == sum(
                n for (n_space, _), (n, value, _) in held.items() if n_space == number and value is not None
            )
        memory = capacity.memory
        assert memory.used_bytes + memory.idle_bytes <= SIZE and memory.footprint_bytes >= memory.used_bytes


def test_small_rooms_share_slabs_and_waste_little() -> None:
    addresses = Addresses(SIZE)
    taken = [addresses.take(room_for(SMALL_BYTES)) for _ in range(SLAB_BYTES // SMALL_BYTES)]
    assert addresses.footprint_bytes == SLAB_BYTES and len(set(taken)) == len(taken)
    for nbytes in range(2 << 10, 1 << 20, 977):
        assert nbytes <= room_for(nbytes) <= nbytes + nbytes // 32 + 64
