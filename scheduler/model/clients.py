"""Why a batch came when it came, guessed from a journal: after an answer, by the clock, or as fast as its client makes them.

A batch that finds the session idle came *think time* after the last answer. Whether a session goes on because it got the answer (closed
loop) or because it was time (the clock) shows in its think times: if they do not depend on how long the answers took, it is the
answer; if a longer answer is followed by a shorter pause, it is the clock. This is the slope of pauses over answers, 0 or -1, fitted by
least squares. Where the answers hardly vary, the slope says nothing, and a long pause is taken for the clock.

A client that keeps up to W batches under way sends the next when the one W before it is done: the time from that to its arrival is then
what it takes to hear and to send, and varies far less than the time between the arrivals of the two (which contains the answer). W is one
more than were ever under way; where the first spread is not clearly below the second, the client has no such window.

Else a batch that finds others of its session under way came because the oldest of them had just finished, or a gap after the one before
it. A client that again and again sends after a pause in which nothing of its own came back does not wait for answers at all: it goes by
the clock, whatever is under way. No client has more batches under way than the protocol allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bus_schemas.batch import LIMITS

_SAMPLES_MIN: Final = 8
_UNASKED_MIN: Final = 4
_UNASKED_PERCENT: Final = 10
_BLOCKED_PERCENT: Final = 30
_OFTEN_PERCENT: Final = 5
_RARELY_PERCENT: Final = 3
_INSIDE_PERCENT: Final = 70
_SLOPE_ERROR_MAX_PERCENT: Final = 30
_LONG_ANSWERS: Final = 4
_LONG_NS: Final = 5_000_000
"""A pause longer than that, and than ``_LONG_ANSWERS`` usual answers, is long."""
_SHORT_NS: Final = 2_000_000
"""A pause shorter than that is a client at work, not one that waits for its time."""
_WINDOW_SPREAD_PERCENT: Final = 85
_WINDOW_SLACKS: Final = 4
"""A batch that came so many usual reactions after the one it waits for came for another reason: its script was busy."""

_UNDER_WAY_MAX: Final = LIMITS.outstanding_batches_max
"""A client sends no more without an answer."""


class Seen(NamedTuple):
    """A recorded batch: when it arrived and when it was finished."""

    arrived_ns: int
    finished_ns: int


class Why(NamedTuple):
    """The terms of an Arrival."""

    at_ns: int = 0
    after_seq: int = -1
    think_ns: int = 0
    gap_ns: int = 0
    reacts: bool = False


@dataclass(frozen=True, slots=True)
class _Facts:
    """``under_way``: by batch, how many of its session were when it arrived; ``bound``: one more than ever. ``bounded``: the client keeps
    that many under way; ``unasked``: it does not wait for answers. ``clock``: the session as a whole goes by it (None: it cannot be said).
    ``long_ns``: what a long pause is. ``react_ns``: how long a client with a window usually takes from an answer to its next batch (-1: it
    has none)."""

    under_way: list[int]
    bound: int
    bounded: bool
    unasked: bool
    clock: bool | None
    long_ns: int
    react_ns: int


def explain_arrivals(batches: Sequence[Seen]) -> list[Why]:
    """For each batch of one session (in order of seq, finished in that order) what its arrival depended on."""
    if not batches:
        return []
    facts = _facts(batches)
    return [_why(batches, k, facts) for k in range(len(batches))]


def _facts(batches: Sequence[Seen]) -> _Facts:
    under_way, done = [], 0
    for k, batch in enumerate(batches):
        while done < k and batches[done].finished_ns <= batch.arrived_ns:
            done += 1
        under_way.append(k - done)
    turns = []  # (how long the last answer took, the pause after it)
    for (asked_ns, answered_ns), (arrived_ns, _), others in zip(batches, batches[1:], under_way[1:], strict=False):
        if not others:
            turns.append((answered_ns - asked_ns, arrived_ns - answered_ns))
    answers = sorted(answer for answer, _ in turns)
    usual_ns = answers[len(answers) // 2] if answers else 0
    bounded, unasked = _unasked(batches, under_way)
    bound, long_ns = max(under_way) + 1, max(_LONG_NS, _LONG_ANSWERS * usual_ns)
    clock = unasked or _by_the_clock(turns)
    return _Facts(
        under_way=under_way, bound=bound, bounded=bounded, unasked=unasked, clock=clock, long_ns=long_ns, react_ns=_reaction(batches, bound)
    )


def _reaction(batches: Sequence[Seen], bound: int) -> int:
    """Median time from the end of a batch to the arrival of the one ``bound`` after it, if the client keeps to such a window; else -1."""
    if bound < 2 or len(batches) < bound + _SAMPLES_MIN:
        return -1
    pairs = list(zip(batches, batches[bound:], strict=False))
    slacks = sorted(late.arrived_ns - early.finished_ns for early, late in pairs)
    between = sorted(late.arrived_ns - early.arrived_ns for early, late in pairs)
    if 100 * _spread(slacks) > _WINDOW_SPREAD_PERCENT * _spread(between):
        return -1
    return slacks[len(slacks) // 2]


def _spread(ordered: Sequence[int]) -> int:
    """From the first to the last tenth: a few stalls do not count."""
    return ordered[-1 - len(ordered) // 10] - ordered[len(ordered) // 10]


def _unasked(batches: Sequence[Seen], under_way: Sequence[int]) -> tuple[bool, bool]:
    """Does the client keep a number under way, and if not: does it send without looking at answers? Of the batches that came after a pause,
    since the batch before and since anything of the session finished, some find others under way: a client that waits for all of them, or
    for the oldest of as many as it ever has, has none of these. Or there are many under way now and then, and rarely as many as ever: that
    is a queue that grows by chance."""
    paused = overlapping = blocked = 0
    most = max(under_way)
    for k in range(1, len(batches)):
        arrived_ns, done = batches[k].arrived_ns, k - under_way[k]
        since_ns = max(batches[k - 1].arrived_ns, batches[done - 1].finished_ns if done else 0)
        if under_way[k] == most and done and batches[done - 1].finished_ns == since_ns:
            blocked += 1
        elif arrived_ns - since_ns > _SHORT_NS:
            paused += 1
            overlapping += under_way[k] > 0
    if 100 * blocked > _BLOCKED_PERCENT * len(batches) or _bounded(batches, under_way):
        return True, False
    rarely = 100 * sum(others == most for others in under_way) < _RARELY_PERCENT * len(batches)
    return False, (overlapping >= _UNASKED_MIN and 100 * overlapping >= _UNASKED_PERCENT * paused) or (most >= _UNASKED_MIN and rarely)


def _bounded(batches: Sequence[Seen], under_way: Sequence[int]) -> bool:
    """Does the client keep up to a number of batches under way? It nearly always has some, and often as many as it ever has; a queue that
    grows by chance rarely is as long as it ever is."""
    inside_ns, until_ns = 0, 0
    for batch in batches:
        inside_ns += max(0, batch.finished_ns - max(batch.arrived_ns, until_ns))
        until_ns = max(until_ns, batch.finished_ns)
    often = 100 * sum(others == max(under_way) for others in under_way) > _OFTEN_PERCENT * len(batches)
    return often and 100 * inside_ns > _INSIDE_PERCENT * (until_ns - batches[0].arrived_ns)


def _by_the_clock(turns: Sequence[tuple[int, int]]) -> bool | None:
    """Is the slope of pauses over answers nearer to -1 than to 0? None where its standard error is too large to say."""
    n = len(turns)
    if n < _SAMPLES_MIN:
        return None
    xs, ys = [x // 1000 for x, _ in turns], [y // 1000 for _, y in turns]  # in us: sums of squares stay small
    x_sum, y_sum = sum(xs), sum(ys)
    sxx = n * sum(x * x for x in xs) - x_sum * x_sum  # n**2 times the variance
    sxy = n * sum(x * y for x, y in zip(xs, ys, strict=True)) - x_sum * y_sum
    syy = n * sum(y * y for y in ys) - y_sum * y_sum
    if not sxx:
        return None
    # (standard error of the slope)**2 = (syy - sxy**2 / sxx) / ((n - 2) * sxx), compared with the bound in squares
    error = (syy * sxx - sxy * sxy) * 10_000
    if error > _SLOPE_ERROR_MAX_PERCENT**2 * (n - 2) * sxx * sxx:
        return None
    return -2 * sxy > sxx


def _why(batches: Sequence[Seen], k: int, facts: _Facts) -> Why:
    arrived_ns = batches[k].arrived_ns
    if k == 0:
        return Why(at_ns=arrived_ns)
    if facts.react_ns >= 0:
        return _in_window(batches, k, facts)
    if facts.unasked:
        return Why(at_ns=arrived_ns, after_seq=max(-1, k - _UNDER_WAY_MAX))
    if facts.under_way[k]:
        if facts.clock:
            return Why(at_ns=arrived_ns)
        last = k - facts.under_way[k] - 1
        if last >= 0 and batches[last].finished_ns > batches[k - 1].arrived_ns:
            think_ns = arrived_ns - batches[last].finished_ns
            if facts.bounded or think_ns <= _SHORT_NS:  # that it finished is why this one came
                return Why(after_seq=last, think_ns=think_ns)
        return Why(after_seq=max(-1, k - facts.bound), gap_ns=arrived_ns - batches[k - 1].arrived_ns)
    pause_ns = arrived_ns - batches[k - 1].finished_ns
    by_the_clock = facts.clock if facts.clock is not None else pause_ns > facts.long_ns
    if by_the_clock and pause_ns > _SHORT_NS:
        return Why(at_ns=arrived_ns, after_seq=k - 1 if facts.bound == 1 else -1)
    return Why(after_seq=k - 1, think_ns=pause_ns)


def _in_window(batches: Sequence[Seen], k: int, facts: _Facts) -> Why:
    """Of a client with a window: right after the one that it waits for, or when its script had made it."""
    gap_ns = batches[k].arrived_ns - batches[k - 1].arrived_ns
    if k < facts.bound:
        return Why(gap_ns=gap_ns)
    slack_ns = batches[k].arrived_ns - batches[k - facts.bound].finished_ns
    if slack_ns > _WINDOW_SLACKS * facts.react_ns + _SHORT_NS:
        return Why(after_seq=k - facts.bound, think_ns=facts.react_ns, gap_ns=gap_ns)
    return Why(after_seq=k - facts.bound, think_ns=slack_ns, reacts=True)
