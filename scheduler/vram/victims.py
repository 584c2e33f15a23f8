"""Victim selection: which sessions are swapped out, and how much of them, as functions of the state. Nothing here changes it.

A session is *eligible* when it may be swapped, nothing of it runs, moves, or is about to run on memory set aside for it, it has not used
the device for ``idle_ns``, and its last swap did not just fail. Sessions of P0 are victims of P0 only.

Order: sessions below P0 first, so a P0 gives something only when all that the others have is not enough. Among them the least recently
chosen, never chosen before chosen: so one just swapped is not chosen again while another eligible one has not been. Ties go to the lower
priority, then to the longest idle. Of a victim only as much is asked as is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.vram.state import ASKED, WAITING, SessionMemory, VramState

__all__ = ["eligible", "may_displace", "order", "plan", "reachable_bytes", "next_eligible_ns"]


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
