"""The memory core in a simulated world: the rules hold in every seed, a replay gives every decision again, and planted bugs are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from scheduler.vram import Decision, Stimulus, Vram, victims
from scheduler.vram.journal import Journal, decode_journal, decode_state, encode_state
from scheduler.vram.state import SessionMemory
from tests.simulation.vram.auditor import Auditor
from tests.simulation.vram.world import World
from tests.support.replayed import verify_vram

SEEDS = 400


def simulate(seed: int) -> Counter[str]:
    vram, journal, auditor = Vram(), Journal(), Auditor()
    frames: list[bytes] = []
    snapshots: list[tuple[int, bytes]] = []

    def audit(stimulus: Stimulus, decisions: list[Decision], world: World) -> None:
        frames.append(journal.add(stimulus, decisions))
        if len(frames) % 97 == 0:
            snapshots.append((len(frames), encode_state(vram.state)))
        auditor(stimulus, decisions, world)

    world = World(seed, vram, audit)
    world.run()
    auditor.finish(world)
    records, _ = decode_journal(b"".join(frames))
    assert verify_vram(records).state == vram.state
    for at, snapshot in snapshots[:3]:
        assert verify_vram(records[at:], snapshot).state == vram.state
        assert encode_state(decode_state(snapshot)) == snapshot
    return Counter(world.counts)


def test_the_rules_hold_in_every_seed() -> None:
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            totals += simulate(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    for kind in ("Allow", "Await", "Refuse", "SwapOut", "SwapIn", "MemoryReady"):
        assert totals[kind] > SEEDS, f"hardly any {kind}: the simulation does not test it ({totals})"


def p0_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "order", lambda v: (v.turn, -v.priority, v.used_ns, v.session))


def the_busy_are_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "eligible", lambda state, r, v, revoked=False: victims.may_displace(r, v) and v.held > 0 and not v.moving)


def always_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "order", lambda v: (v.priority == 0, v.session))


def noswap_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "may_displace", lambda r, v: v is not r and (v.priority > 0 or r.priority == 0))


def what_left_is_booked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Vram._left

    def again(self: Vram, victim: SessionMemory, nbytes: int, dropped: int, *, failed: bool) -> list[Decision]:
        decisions = left(self, victim, nbytes, dropped, failed=failed)
        self.state.used_bytes -= nbytes
        return decisions

    monkeypatch.setattr(Vram, "_left", again)


def waiters_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vram, "_serve", lambda self: [])


@pytest.mark.parametrize(
    "plant",
    [p0_like_the_others, the_busy_are_victims, always_the_same_one, noswap_is_forgotten, what_left_is_booked_twice, waiters_are_not_served],
)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            simulate(seed)
        except AssertionError:
            return
    raise AssertionError("no seed noticed")
