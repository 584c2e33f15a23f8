"""Per-session pace: a token bucket on core time, exact.

A token is 1/1000 core-ns. A session with a pace of p permille on a device of c cores earns p x c tokens a nanosecond, up to what it earns
in ``pace_burst_ns``; a slice costs 1000 tokens a core-ns, an estimate standing in while it is in flight. It may be launched while it has
tokens, so over any time t it uses at most p/1000 x c x (t + pace_burst_ns) core-ns and what the slices in flight cost beyond that.
"""

from __future__ import annotations

from typing import Final

from scheduler.dispatch.state import SessionState
from scheduler.dispatch.stimuli import DispatchConfig

_TOKENS: Final = 1000


def fill(session: SessionState, config: DispatchConfig) -> None:
    """A full bucket, for a session that opens."""
    session.tokens = _rate(session, config) * config.pace_burst_ns


def settle(session: SessionState, config: DispatchConfig, now_ns: int) -> None:
    """Put what was earned up to ``now_ns`` into the bucket."""
    session.tokens = _tokens(session, config, now_ns)
    session.tokens_at_ns = now_ns


def spend(session: SessionState, config: DispatchConfig, now_ns: int, core_ns: int) -> None:
    """Take what ``core_ns`` cost; negative: give it back."""
    settle(session, config, now_ns)
    session.tokens -= core_ns * _TOKENS


def ready_at_ns(session: SessionState, config: DispatchConfig, now_ns: int) -> int:
    """When the session may be launched: ``now_ns`` if it has tokens, else the first time it has one."""
    tokens = _tokens(session, config, now_ns)
    return now_ns if tokens > 0 else now_ns + -tokens // _rate(session, config) + 1


def _rate(session: SessionState, config: DispatchConfig) -> int:
    """Tokens a nanosecond."""
    return session.pace_permille * config.cores


def _tokens(session: SessionState, config: DispatchConfig, now_ns: int) -> int:
    rate = _rate(session, config)
    return min(session.tokens + (now_ns - session.tokens_at_ns) * rate, rate * config.pace_burst_ns)
