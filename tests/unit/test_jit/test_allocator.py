"""The waste of an arena over many operations, that it never refuses what is free, and that moving is invisible."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from jit.backends import BACKENDS, create_engine
from jit.engine import Engine
from jit.errors import OutOfMemory
from jit.memory import Arena, Block, Capacity, SpaceMemory, arena_bytes
from jit.memory.addresses import SLAB_BYTES, SMALL_BYTES
from jit.runs import check_there
from tests.support.builder import Builder
from tests.support.churn import churn
from wis.dtypes import DType
from wis.verify import Verified, verify

RUNNING = [name for name in BACKENDS if name != "cuda"]


def test_a_long_life_wastes_little_and_refuses_nothing() -> None:
    """2 % is less than half of what is allowed and twice what rounding costs on average; the waste does not grow with time."""
    accounts = list(churn(4 << 30, 30_000, 10_000, largest=64 << 20))
    assert [account.failed for account in accounts] == [0, 0, 0]
    assert accounts[-1].worst < 0.02
    assert accounts[-1].worst - accounts[0].worst < 0.005


def test_what_is_free_can_be_had_however_it_is_cut_up() -> None:
    """Every second block is freed: half of the memory is free and no piece of it is large."""
    capacity = Capacity(64 << 20)
    space = SpaceMemory(capacity)
    size = 1 << 20
    for key in range(64):
        space.alloc(key, size).data[:] = key
    for key in range(0, 64, 2):
        space.free(key)
    assert not SpaceMemory(capacity).alloc(0, 32 << 20).data.any()
    for key in range(1, 64, 2):
        assert (space[key].data == key).all()
    with pytest.raises(OutOfMemory):
        space.alloc(99, 1)


def test_a_cache_that_grows_leaves_no_trail_of_memory_that_fits_nothing() -> None:
    """As a language model's: each step makes it anew, a little larger, and frees the one before. That memory is used again."""
    capacity = Capacity(1 << 30)
    space = SpaceMemory(capacity)
    touched = set()
    for step in range(2000):
        nbytes = (64 + step) << 10
        touched.add(space.alloc(step, nbytes).offset >> 21)
        if step:
            space.free(step - 1)
        live = capacity.memory.used_bytes + nbytes
        assert step < 500 or capacity.idle_bytes < 8 * live
    assert len(touched) << 21 < 40 << 20


def test_what_a_step_frees_is_there_for_the_next_one_however_much_it_was() -> None:
    """The large blocks of a training step wait while small ones come and leave, and while another session is quiet."""
    capacity = Capacity(1 << 30)
    space, quiet = SpaceMemory(capacity), SpaceMemory(capacity)
    quiet.alloc(0, 1 << 20)
    quiet.free(0)
    offsets = []
    for _ in range(20):
        offsets.append([space.alloc(key, (8 + key) << 20).offset for key in range(8)])
        for key in range(8):
            space.free(key)
        for _ in range(100):
            space.alloc(0, 1 << 20)
            space.free(0)
    assert all(now == offsets[0] for now in offsets)


def test_blocks_move_only_while_no_run_is_under_way() -> None:
    """Making room takes the lock that runs hold; what fits without it does not."""
    taken: list[int] = []

    class Running:
        def __enter__(self) -> None:
            taken.append(capacity.used_bytes)

        def __exit__(self, *exception: object) -> None: ...

    capacity = Capacity(64 << 20, running=Running())
    space = SpaceMemory(capacity)
    for key in range(64):
        space.alloc(key, 1 << 20)
    for key in range(0, 64, 2):
        space.free(key)
    assert taken == []
    SpaceMemory(capacity).alloc(0, 32 << 20)
    assert taken == [32 << 20]


@pytest.mark.parametrize("backend", RUNNING)
def test_a_piece_of_a_run_holds_that_lock(backend: str) -> None:
    """A step of a run asks whether another thread could move blocks now."""
    engine: Any = create_engine(backend, cache_dir=None, threads=1, vram_bytes=16 << 20)
    space = engine.open_space()
    for key, nbytes in enumerate((2048, 2048, 4096)):
        space.alloc(key, nbytes)
    run = space.begin(engine.prepare(chain()[0]), [], [0, 1, 2, 3])
    asked: list[bool] = []

    def ask() -> None:
        lock = engine._capacity._running
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        asked.append(free)

    def traced(*given: Any, **named: Any) -> Any:
        asker = threading.Thread(target=ask)
        asker.start()
        asker.join()
        return check_there(*given, **named)

    engine.cut_after = 1
    run.go()
    assert not run.over
    with pytest.MonkeyPatch.context() as patch:
        for module in ("jit.reference", "jit.prepared"):
            patch.setattr(f"{module}.check_there", traced)
        run.go()
    ask()
    assert asked == [False, True]
    engine.close()


def test_a_few_small_blocks_do_not_hold_a_device() -> None:
    """In every small size class the device is filled and one block a slab stays: a quota of kilobytes that would hold all of the arena's
    slabs, and still everything but those bytes can be had by others."""
    capacity = Capacity(1 << 20)
    space = SpaceMemory(capacity)
    kept: dict[int, int] = {}
    for room in range(64, SMALL_BYTES + 64, 64):
        keys = range(room << 20, (room << 20) + (capacity.vram_bytes - capacity.used_bytes) // room)
        for key in keys:
            space.alloc(key, room)
        stays = keys[:: SLAB_BYTES // room]
        for key in keys:
            if key in stays:
                space[key].data[:] = len(kept) % 251
                kept[key] = len(kept) % 251
            else:
                space.free(key)
        capacity.forget(space._owner)
    assert len(kept) * SLAB_BYTES > 2 * arena_bytes(capacity.vram_bytes)
    SpaceMemory(capacity).alloc(0, capacity.vram_bytes - capacity.used_bytes)
    for key, value in kept.items():
        assert (space[key].data == value).all()


def chain(n: int = 512) -> tuple[Verified, Builder]:
    """Sums, sorts, products, temporaries that no fusion removes, an update in place, and a gather."""
    b = Builder()
    x, w, places = b.external(DType.F32, (n,)), b.external(DType.F32, (n,)), b.external(DType.I64, (n,))
    previous = x
    for _ in range(4):
        summed, sorted_, order = b.temp(DType.F32, (n,)), b.temp(DType.F32, (n,)), b.temp(DType.I64, (n,))
        b.emit("cumsum", summed, [previous], (0,))
        b.emit("sort", [sorted_, order], [summed], (0, 0))
        b.emit("mul", w, [w, sorted_])
        previous = b.temp(DType.F32, (n,))
        b.emit("gather", previous, [sorted_, places], (0,))
    b.emit("add", b.created(DType.F32, (n,)), [previous, w])
    return verify(*b.finish()[:2]), b


def arena_of(engine: Any) -> Arena:
    placed = engine._capacity.placed
    found = getattr(placed, "placed", placed)
    assert isinstance(found, Arena)
    return found


def outcome(engine: Engine, *, moving: bool) -> tuple[list[bytes], int]:
    """The bytes of every buffer after a run in pieces; with ``moving``, everything moves before each piece. Also how often it did."""
    verified, _ = chain()
    other, space = engine.open_space(), engine.open_space()
    stones = 40 if moving else 0
    for key in range(stones):
        other.alloc(key, 64 << 10)
    rng = np.random.default_rng(5)
    data = [rng.standard_normal(512, np.float32), rng.standard_normal(512, np.float32), rng.permutation(512)]
    for key, values in enumerate(data):
        space.alloc(key, 8 << 10)  # beyond slabs, so that they do move
        space.write(key, 0, values.tobytes())
    arena = arena_of(engine)
    run = space.begin(engine.prepare(verified), [], [0, 1, 2, 3])
    blocks: list[Block] = [space._memory[key] for key in range(3)]  # type: ignore[attr-defined]  # every space has it
    moves = 0
    while not run.over:
        if moves < stones:
            where = [block.offset for block in blocks]
            other.free(moves)
            other.park(moves + 1) if moves + 1 < stones else None
            engine._capacity.forget(other._memory._owner)  # type: ignore[attr-defined]  # every engine and space has it
            assert arena.make_room(arena.addresses.free_bytes)
            assert all(block.offset < before for block, before in zip(blocks, where, strict=True))
            if moves + 1 < stones:
                other.free(moves + 1)
            moves += 2
        run.go()
    return [bytes(space.read(key, 0, space.size(key))) for key in range(4)], moves // 2


@pytest.mark.parametrize("backend", RUNNING)
def test_moving_everything_between_two_pieces_of_a_run_changes_no_bit(backend: str) -> None:
    found = []
    for moving in (False, True):
        engine = create_engine(backend, cache_dir=None, threads=2, vram_bytes=16 << 20)
        engine.cut_after = 1  # type: ignore[attr-defined]  # every engine has it
        result, moves = outcome(engine, moving=moving)
        found.append(result)
        assert moves >= 3 * moving
        engine.close()
    assert found[0] == found[1]
