"""Profiles of scripts: the timeline, the sums, and the advice."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bus_schemas.session import DeviceInfo, NodeInfo, SessionOpened
from wooly.link import Flush, LinkWrapper, Origin, ReadBytes, Ticket
from wooly.profiling import Profile, ProfiledLink, advice, path_of, summary

S = 10**9


class _Node(LinkWrapper):
    """A node that answers batch n before ``submit`` returns if n is odd, else when it is waited for."""

    wire_bytes = 0
    info = SessionOpened(
        session="s", epoch=1, node=NodeInfo("n", "n", "", 1, (DeviceInfo(0, "d", "host", 4, 1 << 30, 1 << 30),), ()), gpus=(0,)
    )

    def __init__(self) -> None:
        self.seq = 0
        self.outer: ProfiledLink | None = None

    def _answer(self, seq: int) -> None:
        assert self.outer is not None
        self.outer.done(seq, 4_000)

    def submit(self, flush: Flush) -> Ticket:
        self.seq += 1
        self.wire_bytes += 100
        if self.seq % 2:
            self._answer(self.seq)
        return Ticket(self.seq)

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        if not ticket.seq % 2:
            self._answer(ticket.seq)
        return [b"x"]


def test_every_batch_has_its_way_whether_its_answer_comes_early_or_late(tmp_path: Path) -> None:
    node = _Node()
    link = node.outer = ProfiledLink(node, str(tmp_path / "t.json"))
    for number in range(1, 5):
        flush = Flush(n_ops=3, uploads=[(number, memoryview(b"abc"))], origin=Origin(f"a.py:{number - 1}", f"a.py:{number}"))
        assert link.wait(link.submit(flush)) == [b"x"]
    lines = link.finish({})
    found = link.profile
    assert (found.n_batches, found.n_ops, found.upload_bytes, found.core_ns, found.cores, found.open) == (4, 12, 12, 16_000, 4, {})
    assert [times for _, times in found.waits.values()] == [1] * 4 and "a.py:1 to a.py:2" in found.waits
    assert all(batch.sent_ns <= batch.done_ns for batch in found.batches)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sorted(event["id"] for event in events if event["ph"] == "b") == sorted(event["id"] for event in events if event["ph"] == "e")
    sends = [event for event in events if event["name"].startswith("send")]
    assert [(event["args"]["batch"], event["args"]["bytes"]) for event in sends] == [(number, 100) for number in range(1, 5)]
    slices = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["tid"] == 3]
    assert all(at + length <= later + 1e-3 for (at, length), (later, _) in itertools.pairwise(slices)), "one after the other"
    assert lines[-1].startswith(f"timeline: {tmp_path / 't.json'}")


def test_a_timeline_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    node = _Node()
    path = str(tmp_path / "no" / "t.json")
    node.outer = ProfiledLink(node, path)
    assert node.outer.finish({})[-1] == f"the timeline cannot be written to {path} (No such file or directory)"


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (Profile(2, 0, 10 * S, n_batches=9, n_ops=90, core_ns=14 * S), ["the device is the limit"]),
        (
            Profile(2, 0, 10 * S, n_batches=40, n_ops=9_000, waiting_ns=5 * S, waits={"a.py:7": (4 * S, 20), "a.py:9": (S, 1)}),
            ["waits for values are the limit: a.py:7 reads one 20 times"],
        ),
        (Profile(2, 0, 10 * S, n_batches=40, n_ops=100_000, waiting_ns=S), ["the script's own thread is the limit, 90 us an operation"]),
        (Profile(2, 0, 10 * S, n_batches=4, n_ops=4, sending_ns=4 * S, upload_bytes=3 << 20), ["sending is the limit: 3 MiB"]),
        (Profile(2, 0, 10 * S, fallbacks={"aten::rare": 2, "aten::often": 30}), ["operations that this machine computes"]),
        (Profile(2, 0, 10 * S, n_batches=4, n_ops=4), ["nothing stands out"]),
    ],
)  # fmt: skip
def test_advice_names_what_bounds_the_script(profile: Profile, says: list[str]) -> None:
    found = advice(profile)
    assert [text[: len(start)] for text, start in zip(found, says, strict=True)] == says


def test_the_summary_divides_the_time() -> None:
    profile = Profile(
        2, 0, 10 * S, n_batches=2, n_ops=7, sending_ns=S, waiting_ns=3 * S, core_ns=4 * S, waits={"a.py:7": (2 * S, 20), "": (S, 1)}
    )
    assert summary(profile) == [
        "10.0 s: 60 % in the script, 10 % sending, 30 % waiting; the device at work for 20 % at least; 7 operations in 2 batches",
        "waits: a.py:7 2.00 s (20x), the end 1.00 s (1x)",
    ]


def test_each_rank_writes_its_own_file() -> None:
    assert path_of("a/p.json", {}) == "a/p.json"
    assert path_of("a/p.json", {"LOCAL_RANK": "3"}) == "a/p-rank3.json"
