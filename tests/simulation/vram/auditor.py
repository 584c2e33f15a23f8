"""An independent model of the memory core's rules, with its own record of use by session and time.

1. The device is never overrun, and what the core has booked is what is there and what is set aside.
2. A batch begins only when everything it names is on the device; its quota holds.
3. A victim may be swapped, runs nothing, moves nothing, has been idle for the time, and did not just fail. P0 gives only to P0 and only
   when all that eligible others have goes too. No session is chosen while another eligible one of its kind was chosen longer ago.
4. A requesting session never gives a buffer of the batch it asks for.
5. At the end no session waits, no buffer is lost, and all is free.
"""

from __future__ import annotations

from scheduler.vram import (
    AllocationRequested,
    Allow,
    Decision,
    Holds,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
)
from tests.simulation.vram.world import AWAY, COMING, DEVICE, LEAVING, World

__all__ = ["Auditor"]


class Auditor:
    def __init__(self) -> None:
        self.used_ns: dict[str, int] = {}
        self.barred_ns: dict[str, int] = {}
        self.turn: dict[str, int] = {}
        self.swapped: dict[str, int] = {}
        self.moving: set[str] = set()
        self.turns = 0

    def __call__(self, stimulus: Stimulus, decisions: list[Decision], world: World) -> None:
        self._note(stimulus, world)
        self._books(world, decisions)
        asked: dict[str, int] = {}
        for decision in decisions:
            match decision:
                case SwapOut():
                    self._victim(decision, stimulus, world, asked)
                case SwapIn(name):
                    assert name not in self.moving and not world.tenants[name].runs, f"{decision}: it runs or moves"
                    self.moving.add(name)
                case Allow(name):
                    self._allowed(name, stimulus, world)
        for name in asked:
            self.moving.add(name)

    def finish(self, world: World) -> None:
        """Rule 5."""
        assert not world.tenants, f"{sorted(world.tenants)} never ended"
        state = world.vram.state
        assert (state.used_bytes, state.swapped_bytes, state.leaving_bytes, state.waiting) == (0, 0, 0, [])

    def _note(self, stimulus: Stimulus, world: World) -> None:
        match stimulus:
            case SessionOpened(at_ns, name):
                self.used_ns[name], self.turn[name], self.barred_ns[name] = at_ns, 0, 0
            case SessionClosed(_, name):
                self.moving.discard(name)
                self.used_ns.pop(name)
                self.barred_ns = dict.fromkeys(self.barred_ns, 0)
            case Holds(at_ns, name):
                self.used_ns[name] = at_ns
                if stimulus.swapped_bytes < self.swapped[name]:  # it freed some of that
                    self.barred_ns = dict.fromkeys(self.barred_ns, 0)
            case SwappedIn(at_ns, name):
                self.used_ns[name] = at_ns
                self.moving.discard(name)
                self.barred_ns = dict.fromkeys(self.barred_ns, 0)
            case SwapLost(_, name):
                self.moving.discard(name)
            case SwappedOut(_, name) | SwapFailed(_, name):
                self.moving.discard(name)
                if isinstance(stimulus, SwapFailed) or not stimulus.nbytes:
                    self.barred_ns[name] = stimulus.at_ns + world.config.retry_ns

        if not isinstance(stimulus, SessionClosed):
            self.swapped = {name: tenant.bytes_where(AWAY, COMING) for name, tenant in world.tenants.items()}

    def _books(self, world: World, decisions: list[Decision]) -> None:
        """Rule 1, before the decisions are carried out."""
        state = world.vram.state
        there = sum(tenant.bytes_where(DEVICE, LEAVING, COMING) for tenant in world.tenants.values())
        assert there <= world.physical, f"{there} bytes on a device of {world.physical}"
        allowed = sum(d.nbytes for d in decisions if isinstance(d, Allow))
        aside = sum(s.grant + s.coming for s in state.sessions.values())
        coming = sum(tenant.bytes_where(COMING) for tenant in world.tenants.values())
        assert state.used_bytes - aside == there - coming + allowed, "the books differ from the device"
        assert state.used_bytes == sum(s.on_device for s in state.sessions.values())
        assert 0 <= state.used_bytes <= world.physical
        for name, tenant in world.tenants.items():
            if name in state.sessions:
                assert state.sessions[name].swapped == tenant.bytes_where(AWAY, COMING), f"{name}: what is swapped out"

    def _allowed(self, name: str, stimulus: Stimulus, world: World) -> None:
        """Rule 2."""
        assert isinstance(stimulus, AllocationRequested)
        tenant = world.tenants[name]
        assert tenant.batch is not None and not tenant.runs
        assert all(tenant.buffers[key].where == DEVICE for key in tenant.batch.named), f"{name} begins without its memory"
        quota = tenant.opened.quota_bytes
        assert not quota or sum(b.nbytes for b in tenant.buffers.values()) + stimulus.nbytes <= quota
        self.used_ns[name] = stimulus.at_ns

    def _victim(self, decision: SwapOut, stimulus: Stimulus, world: World, asked: dict[str, int]) -> None:
        """Rules 3 and 4."""
        name = decision.session
        victim = world.tenants[name]
        requester = decision.for_session or getattr(stimulus, "session", "")
        assert victim.opened.swap, f"{decision}: it may not be swapped"
        assert not victim.runs and name not in self.moving, f"{decision}: it runs or moves"
        if name == requester:
            assert victim.batch is not None
            cold = sum(b.nbytes for key, b in victim.buffers.items() if b.where == DEVICE and key not in victim.batch.named)
            assert decision.nbytes <= cold, f"{decision}: only {cold} bytes of it are not named by its batch"
        else:
            assert self._eligible(name, requester, world), f"{decision}: not eligible for {requester}"
            self._order(decision, requester, world, asked)
        self.turns += 1
        self.turn[name] = self.turns
        asked[name] = asked.get(name, 0) + decision.nbytes

    def _order(self, decision: SwapOut, requester: str, world: World, asked: dict[str, int]) -> None:
        name = decision.session
        is_p0 = world.tenants[name].opened.priority == 0
        for other, tenant in world.tenants.items():
            if other == name or not self._eligible(other, requester, world):
                continue
            if is_p0 and tenant.opened.priority > 0:
                assert asked.get(other, 0) >= tenant.bytes_where(DEVICE), f"{decision}: {other} is below P0 and has something to give"
            elif is_p0 == (tenant.opened.priority == 0) and other not in asked:
                assert self.turn[other] >= self.turn[name], f"{decision}: {other} was chosen longer ago"

    def _eligible(self, name: str, requester: str, world: World) -> bool:
        tenant = world.tenants[name]
        state = world.vram.state.sessions[name]
        return (
            name != requester
            and tenant.opened.swap
            and (tenant.opened.priority > 0 or world.tenants[requester].opened.priority == 0)
            and tenant.bytes_where(DEVICE) > 0
            and not tenant.runs
            and name not in self.moving
            and state.grant == 0
            and not (state.waiter is not None and state.waiter.state in (1, 2, 3))
            and world.now_ns - self.used_ns[name] >= world.config.idle_ns
            and world.now_ns >= self.barred_ns[name]
        )
