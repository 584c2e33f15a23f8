"""Run one script through our client on a real node and keep its batches: ``python -m benchmarks.sla.record KIND FILE``.

The client is ours unchanged; what it submits is written down on the way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from benchmarks.sla.recording import Recording, Sent, Writer, save
from wooly.link import Flush, ReadBytes, Ticket
from wooly.session import Session

__all__ = ["main"]

_STEPS: Final = 24
"""Enough for a script to come into its stride (see recording.Endless)."""


def _listen(writer: Writer) -> None:
    """Write down what every session of this process submits, and what it is answered."""
    submitted: dict[int, Sent] = {}
    submit, wait = Session.submit, Session.wait

    def submit_and_keep(self: Session, flush: Flush) -> Ticket:
        if flush.kernels:
            raise RuntimeError("a recording holds no kernels")
        ticket = submit(self, flush)
        submitted[ticket.seq] = writer.add(flush)
        return ticket

    def wait_and_keep(self: Session, ticket: Ticket) -> list[ReadBytes]:
        answers = wait(self, ticket)
        sent = submitted.get(ticket.seq)
        if sent is not None:
            sent.waited = True
            sent.answer = blake3(b"".join(bytes(answer) for answer in answers)).digest()
        return answers

    Session.submit, Session.wait = submit_and_keep, wait_and_keep  # type: ignore[method-assign]  # the point of this process


def main() -> None:
    kind, path = sys.argv[1], Path(sys.argv[2])
    writer = Writer(Recording(kind, {}, [], []))
    _listen(writer)
    import torch

    from benchmarks.sla.kinds import KINDS

    torch.manual_seed(0)
    step: Any = KINDS[kind]("cuda")
    for number in range(3):  # compiles, warms the client's caches; part of the set-up
        step(number)
    torch.cuda.synchronize()
    for number in range(_STEPS):
        writer.begin_step()
        step(number)
    save(path, writer.recording)


if __name__ == "__main__":
    main()
