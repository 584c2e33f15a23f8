"""Shared memory and its bill: whatever sessions upload, write, free and close, charges sum to what is on the device, at every instant."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from bus_schemas.batch import Upload
from jit.backends import create_engine
from jit.engine import Space
from services.server.executor.content import SHARE_BYTES_MIN, Charges, Content, split
from services.server.executor.staging import Staging
from services.server.meter import Account, Meter

SESSIONS = ("a", "ab", "ac", "b", "ba", "bbb", "c", "h", "ha")
"""Prefixes of one another, and more than one that begins with the same letter."""

names = st.sampled_from(SESSIONS)


@given(st.integers(0, 1 << 50), st.sets(names))
def test_parts_sum_to_the_block_and_differ_by_a_byte_at_most(nbytes: int, holders: set[str]) -> None:
    parts = split(nbytes, holders)
    assert parts.keys() == holders
    if holders:
        assert sum(parts.values()) == nbytes
        assert max(parts.values()) - min(parts.values()) <= 1
        assert parts == split(nbytes, sorted(holders, reverse=True)), "the order in which they came does not count"
        assert list(parts.values()) == sorted(parts.values(), reverse=True)


@given(st.lists(st.tuples(st.integers(0, 3), names, st.booleans()), max_size=60))
def test_running_sums_are_the_sums_of_the_parts(moves: list[tuple[int, str, bool]]) -> None:
    sizes = (1, 7, 100, 12345)
    holders: dict[int, set[str]] = {block: set() for block in range(4)}
    charges = Charges()
    told: dict[str, int] = {}
    for block, name, joins in moves:
        before = frozenset(holders[block])
        holders[block] = before | {name} if joins else before - {name}
        charges.move(sizes[block], before, holders[block])
        for session in SESSIONS:
            assert charges.of(session) == sum(split(sizes[at], held).get(session, 0) for at, held in holders.items())
        assert charges.total() == sum(sizes[at] for at, held in holders.items() if held)
        for changed in charges.take_changed():
            told[changed] = charges.of(changed)
        assert all(told.get(name, 0) == charges.of(name) for _, name, _ in moves), "every change was reported"


@dataclass
class _Session:
    space: Space
    domain: str
    content: dict[int, bytes] = field(default_factory=dict)


class _Node:
    """An executor's memory and the server's meter, joined by what an Executed says: one's own charge, and those of others that changed."""

    def __init__(self) -> None:
        self.engine = create_engine("reference", cache_dir=None, threads=1, vram_bytes=1 << 30)
        self.staging = Staging()
        self.content = Content(self.staging)
        self.sessions: dict[str, _Session] = {}
        self.meter = Meter("node", 1, 0, 2, 0, 0)
        self.now_ns = 0
        self.charged_byte_ns = 0
        """Of accounts that are closed."""
        self.held_byte_ns = 0
        """What is on the device, integrated by this test."""
        self.handles = 0

    def pass_time(self, by_ns: int) -> None:
        self.held_byte_ns += self.engine.memory.used_bytes * by_ns
        self.now_ns += by_ns

    def report(self, session: str) -> None:
        others = tuple((name, self.content.charged(name)) for name in self.content.take_changed() if name != session)
        self.meter.work(
            session,
            begin_ns=self.now_ns,
            start_ns=self.now_ns,
            end_ns=self.now_ns,
            finish_ns=self.now_ns,
            core_ns=0,
            instructions=0,
            launches=0,
            resident_bytes=self.content.charged(session),
            others=others,
        )

    def open(self, session: str, domain: str) -> None:
        self.staging.open(session, "", 1 << 40)
        self.sessions[session] = _Session(self.engine.open_space(), domain)
        self.content.open(session, domain, self.sessions[session].space)
        self.meter.cut(self.now_ns)
        self.meter.open(Account(session, "t", "", 0))

    def upload(self, session: str, data: bytes) -> None:
        self.handles += 1
        digest = blake3(data).digest()
        if self.content.have(session, (digest,)) == b"\0":
            self.staging.put(session, digest, bytearray(data))
        self.content.upload(session, Upload(self.handles, len(data), chunks=(digest,)), ())
        self.sessions[session].content[self.handles] = data
        self.report(session)

    def write(self, session: str, handle: int) -> None:
        self.content.release(session, [handle])
        self.sessions[session].space.write(handle, 0, b"written")
        self.sessions[session].content[handle] = b"written" + self.sessions[session].content[handle][7:]
        self.report(session)

    def free(self, session: str, handle: int) -> None:
        del self.sessions[session].content[handle]
        self.content.freed(session, handle)
        self.sessions[session].space.free(handle)
        self.report(session)

    def close(self, session: str) -> None:
        self.staging.close(session)
        self.content.close(session)
        self.sessions.pop(session).space.close()
        others = tuple((name, self.content.charged(name)) for name in self.content.take_changed())
        self.meter.released(session, others, self.now_ns)
        self.meter.cut(self.now_ns)
        account = self.meter.close(session)
        assert account is not None
        self.charged_byte_ns += account.byte_ms * 10**6 + account.byte_ns

    def check(self) -> None:
        assert sum(self.content.charged(session) for session in self.sessions) == self.engine.memory.used_bytes
        for session in self.sessions.values():
            for handle, data in session.content.items():
                assert session.space.read(handle, 0, len(data)) == data


# (what, which session, which content or buffer, time before it)
steps = st.tuples(
    st.sampled_from(["upload", "upload", "upload", "write", "free", "close"]), names, st.integers(0, 5), st.integers(0, 10**8)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=30), st.sets(st.integers(0, 29), max_size=5))
def test_what_sessions_are_charged_for_is_what_the_device_holds(script: list[tuple[str, str, int, int]], cuts: set[int]) -> None:
    """Names that begin with the same letter have one domain; those with h did not opt in."""
    node = _Node()
    for at, (what, session, which, by_ns) in enumerate(script):
        node.pass_time(by_ns)
        if session not in node.sessions:
            node.open(session, "" if session[0] == "h" else session[0])
        held = list(node.sessions[session].content)
        if what == "upload":
            node.upload(session, bytes([which]) * (SHARE_BYTES_MIN + which % 3))
        elif what == "close":
            node.close(session)
        elif held:
            (node.write if what == "write" else node.free)(session, held[which % len(held)])
        node.check()
        if at in cuts:
            node.meter.cut(node.now_ns)
    node.pass_time(1)
    node.meter.cut(node.now_ns)
    charged = node.charged_byte_ns + sum(a.byte_ms * 10**6 + a.byte_ns for a in node.meter.accounts.values())
    assert charged == node.held_byte_ns
    for session in list(node.sessions):
        node.close(session)
    assert node.engine.memory.used_bytes == 0
    node.engine.close()
