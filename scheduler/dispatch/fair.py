"""Fair share inside a level: start-time fair queueing by measured core time over weight, with a proved bound.

Source: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing: A Scheduling Algorithm for Integrated Services Packet Switching Networks",
SIGCOMM 1996; costs that are known only afterwards as in P. Goyal, X. Guo, H. M. Vin, "A Hierarchical CPU Scheduler for Multimedia Operating
Systems", OSDI 1996. What is added here: several slices in flight, and a deadline order that may deviate from the shares by a bound.

**Rules.** Virtual time counts core-ns x SCALE / weight, in integers: the core time of slices, and that of all cores while the executor
works for a session besides. Every session has a *tag*; a level has a virtual time V. A session is
*active* while it has a batch that may be launched or one in flight.

1. When a session becomes active, tag := max(tag, V): being idle, paced or without memory earns nothing.
2. A launch takes the ready session with the smallest tag; V := max(V, that tag); then tag += estimate. When the slice ends the
   estimate is replaced by its measured cost. A launch is held back while its tag is above tag + estimate of an active session of the level
   that has a slice in flight (which would be overtaken without being able to compete).
3. A session with a latency target goes by deadline instead, while its tag <= V + A, A its lead; V stays as it is.
4. While a session has a level for itself nothing is charged: shares are between sessions.

**Bound.** For a session s let L be the largest charge of one of its slices, estimated or measured; at most k of them are in flight at once.
Let C be its tag less the estimates in flight: what it has been served. Then C <= tag <= C + kL. For every active session

    V - (k + 1) L  <=  C  <=  V + A + kL.

Left: by rule 2 the session that set V had, if s was active then, a tag of at most s's tag + L <= C + (k + 1) L, and C never falls; if s
became active later, C >= V by rule 1. Right: at its last launch its tag was at most V (rule 2) or V + A (rule 3), and the up to k slices
then in flight exceed what the tag held of them by at most L each; without a launch since it became active, C is max(V, its older tag), and
the older tag obeys the same. So over any interval in which f and m are both active, what they are served per weight differs by at most

    |served(f) / w(f) - served(m) / w(m)|  <=  A(f) + A(m) + (2k + 1) (L(f) + L(m)).

Slices that a session gets by aging or from the reserve come on top: they are meant to deviate.
"""

from __future__ import annotations

from typing import Final

from scheduler.dispatch.state import Level, SessionState
from scheduler.dispatch.stimuli import WEIGHT_MAX

SCALE: Final = WEIGHT_MAX
"""Virtual time per core-ns at weight 1; divided without a rest for the largest weight."""

REBASE_AT: Final = 1 << 60
"""Virtual times are shifted back when they pass this, so that they fit 64 bits for ever (see queues.rebase)."""


def virtual(core_ns: int, weight: int) -> int:
    """``core_ns`` on the clock of a session of this weight, rounded down."""
    return core_ns * SCALE // weight


def join(level: Level, session: SessionState) -> None:
    """The session becomes active: start tag = max(own tag, virtual time of the level)."""
    session.tag = max(session.tag, level.vtime)


def fairness_bound(slice_core_ns: tuple[int, int], weights: tuple[int, int], in_flight_max: int, leads_ns: tuple[int, int] = (0, 0)) -> int:
    """The most by which core-ns x SCALE / weight of two sessions of a level may differ over an interval in which both were active.

    ``slice_core_ns``: the largest cost of one slice of each (measured or estimated); ``leads_ns``: DispatchConfig.deadline_lead_ns for one
    with a latency target, else 0. The proof is above.
    """
    slices = sum(virtual(cost, weight) + 1 for cost, weight in zip(slice_core_ns, weights, strict=True))
    leads = sum(virtual(lead, weight) for lead, weight in zip(leads_ns, weights, strict=True))
    return leads + (2 * in_flight_max + 1) * slices
