"""Memory events of a session, from the journal of the memory core: waits, swaps, refusals. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.vram import AllocationRequested, Await, MemoryReady, Refuse, SwapFailed, SwapOut, SwappedIn, SwappedOut

__all__ = ["MemoryStory"]


@dataclass(slots=True)
class _Wait:
    """A batch that waited for ``nbytes``. ``out``: for its sake others were swapped out, bytes by session."""

    session: str
    nbytes: int
    begin_ns: int
    end_ns: int = -1
    out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryStory:
    """Fold of every record of the lane. ``moves``: swaps of the sessions' memory: (Unix ns, session, out or failed or in, bytes,
    beneficiary)."""

    sessions: Collection[str]
    waits: list[_Wait] = field(default_factory=list)
    moves: list[tuple[int, str, str, int, str]] = field(default_factory=list)
    refused: int = 0
    _waiting: dict[str, _Wait] = field(default_factory=dict)
    _for: dict[str, str] = field(default_factory=dict)

    def take(self, at_ns: int, stimulus: Any, decisions: Sequence[Any]) -> None:
        """One record, of Unix time ``at_ns``."""
        match stimulus:
            case SwappedOut(_, session, nbytes) | SwapFailed(_, session, nbytes) if session in self.sessions:
                what = "out" if isinstance(stimulus, SwappedOut) else "failed"
                self.moves.append((at_ns, session, what, nbytes, self._for.pop(session, "")))
            case SwappedIn(_, session, nbytes) if session in self.sessions:
                self.moves.append((at_ns, session, "in", nbytes, session))
        for decision in decisions:
            self._decided(at_ns, stimulus, decision)

    def _decided(self, at_ns: int, stimulus: Any, decision: Any) -> None:
        match decision:
            case Await(session) if session in self.sessions and session not in self._waiting:
                nbytes = stimulus.nbytes + stimulus.back_bytes + stimulus.copied_bytes if isinstance(stimulus, AllocationRequested) else 0
                self._waiting[session] = _Wait(session, nbytes, at_ns)
                self.waits.append(self._waiting[session])
            case MemoryReady(session) | Refuse(session) if session in self._waiting:
                self._waiting.pop(session).end_ns = at_ns
            case SwapOut(session, nbytes, for_session):
                if session in self.sessions:
                    self._for[session] = for_session
                if for_session in self._waiting:
                    out = self._waiting[for_session].out
                    out[session] = out.get(session, 0) + nbytes
        if isinstance(decision, Refuse) and decision.session in self.sessions:
            self.refused += 1

    def document(self) -> dict[str, Any]:
        """What is shown of it; Unix times."""
        return {
            "waits": [
                {"session": wait.session, "nbytes": wait.nbytes, "from_ns": wait.begin_ns, "to_ns": wait.end_ns, "swapped_out": wait.out}
                for wait in self.waits
            ],
            "moves": [
                {"at_ns": at_ns, "session": session, "what": what, "nbytes": nbytes, "for_session": for_session}
                for at_ns, session, what, nbytes, for_session in self.moves
            ],
            "refused": self.refused,
        }
