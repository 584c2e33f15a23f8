"""Victim selection: which sessions are swapped out, how much of them, and which buffers when part of a victim's memory is enough, as
functions of the state, of sizes and times. Nothing here changes them.

A session is *eligible* when it may be swapped, nothing of it runs, moves, or is about to run on memory set aside for it, it has not used
the device for ``idle_ns``, and its last swap did not just fail. Sessions of P0 are victims of P0 only.

Order: sessions below P0 first, so a P0 gives something only when all that the others have is not enough. Among them the least recently
chosen, never chosen before chosen: so one just swapped is not chosen again while another eligible one has not been. Ties go to the lower
priority, then to the longest idle. Of a victim only as much is asked as is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.vram.state import ASKED, WAITING, SessionMemory, VramState


def may_displace(requester: SessionMemory, victim: SessionMemory) -> bool:
    """May ``victim`` ever be swapped out for ``requester``, whatever the time?"""
    return victim.session != requester.session and victim.swap and (victim.priority > 0 or requester.priority == 0)


def _at_rest(victim: SessionMemory) -> bool:
    return not victim.under_way and not victim.moving and (victim.waiter is None or victim.waiter.state in (WAITING, ASKED))


def eligible(state: VramState, requester: SessionMemory, victim: SessionMemory, revoked: bool = False) -> bool:
    """May ``victim`` be swapped out for ``requester`` now? ``revoked``: what is set aside for its waiting batch is being taken back."""
    return (
        may_displace(requester, victim)
        and victim.held > 0
        and (_at_rest(victim) or (revoked and not victim.under_way and not victim.moving))
        and state.now_ns - victim.used_ns >= state.idle_ns
        and state.now_ns >= victim.barred_until_ns
    )


def order(victim: SessionMemory) -> tuple[bool, int, int, int, str]:
    """Sorts victims: the first is chosen first."""
    return victim.priority == 0, victim.turn, -victim.priority, victim.used_ns, victim.session


def plan(
    state: VramState, requester: SessionMemory, short_bytes: int, cold_bytes: int, revoked: Sequence[SessionMemory] = ()
) -> tuple[list[tuple[SessionMemory, int]], int]:
    """Victims with what to ask of each, so that ``short_bytes`` come free, and how much is still missing then (0: enough).
    ``revoked``: sessions from whose waiting batches what is set aside is being taken back.

    Last comes the requester's own memory that its batch does not name, ``cold_bytes``: it gives up its own before it waits for others.
    """
    chosen: list[tuple[SessionMemory, int]] = []
    room = state.swap_room_bytes
    missing = short_bytes
    candidates = sorted((v for v in state.sessions.values() if eligible(state, requester, v, v in revoked)), key=order)
    own = [requester] if requester.swap and not requester.moving and state.now_ns >= requester.barred_until_ns else []
    for victim in (*candidates, *own):
        nbytes = min(missing, room, victim.held if victim is not requester else min(cold_bytes, victim.held))
        if nbytes > 0:
            chosen.append((victim, nbytes))
            missing -= nbytes
            room -= nbytes
    return chosen, missing


def reachable_bytes(state: VramState, requester: SessionMemory, cold_bytes: int) -> int:
    """The most that ``requester`` could get without any session's end: what is free, set aside or leaving, and what may be swapped out for
    it sooner or later. What asks for more than this would wait in vain."""
    others = [s for s in state.sessions.values() if s is not requester]
    coming_free = state.free_bytes + requester.grant + sum(s.leaving for s in state.sessions.values())
    theirs = sum(s.on_device - s.leaving for s in others if may_displace(requester, s))
    own = min(cold_bytes, requester.held) if requester.swap else 0
    return coming_free + min(theirs + own, max(0, state.swap_room_bytes))


def next_eligible_ns(state: VramState, requester: SessionMemory, after_ns: int) -> int | None:
    """When the next session becomes eligible by time alone, later than ``after_ns``."""
    times = (
        max(v.used_ns + state.idle_ns, v.barred_until_ns)
        for v in state.sessions.values()
        if v.held > 0 and _at_rest(v) and may_displace(requester, v)
    )
    return min((at for at in times if at > after_ns), default=None)


def coldest(buffers: Iterable[tuple[int, int, int]], want_bytes: int) -> list[int]:
    """Handles to give up so that at least ``want_bytes`` come free (all of them when that is less), from (handle, nbytes, used_ns).

    Those unused for longest go first, the larger first among equals; one that turns out not to be needed stays, and of these the one
    used last. So of a victim goes what it misses last, and hardly more than was asked for.
    """
    order = sorted(((used_ns, -nbytes, handle) for handle, nbytes, used_ns in buffers if nbytes), key=lambda b: b)
    chosen: list[tuple[int, int]] = []
    got = 0
    for _, negative, handle in order:
        if got >= want_bytes:
            break
        chosen.append((handle, -negative))
        got -= negative
    kept: set[int] = set()
    for handle, nbytes in reversed(chosen):
        if got - nbytes >= want_bytes:
            got -= nbytes
            kept.add(handle)
    return [handle for handle, _ in chosen if handle not in kept]


def hottest(buffers: Iterable[tuple[int, int, int]], room_bytes: int) -> list[int]:
    """Handles to bring back into ``room_bytes`` ahead of need, from (handle, nbytes, used_ns): those used last first, as many as fit."""
    chosen = []
    for _, nbytes, handle in sorted((-used_ns, nbytes, handle) for handle, nbytes, used_ns in buffers):
        if nbytes <= room_bytes:
            chosen.append(handle)
            room_bytes -= nbytes
    return chosen
