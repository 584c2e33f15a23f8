"""Which usage events of a node are believed: those that what others wrote into the log supports. Pure; a part of the projection.

A node writes its own sessions and usage, and so does an attacker with its key. What the log holds from others is which keys exist and whose
they are, which tasks tenants submitted, where controllers placed them, and when the broker stored each message. A node that has a key of
its own is on a bus that authenticates its clients; of such a node

1. a session counts if its name begins with the id of a key of its tenant (or of the whole cluster), and if its task, when it has one, was
   placed on this node, and is the tenant's;
2. usage counts if it is of an open session that counts, on the session's device, for its tenant and task;
3. in each interval the usage of a device is at most wall time x cores, and wall time x bytes of memory;
4. the intervals of a device are together no longer than the time during which it had open sessions that count, by the broker's clock.

When a task is displaced, what a session on the node was charged so far, with those whose place it took, may be repeated elsewhere without a
charge: by the session that takes its place, before that does anything new, as far as the client says that it repeats (``displaced_ns`` of
usage). The same with instructions and launches, and with the core time of a batch that was not over (``begun_ns``, ``resumed_ns``). If the
node was lost, what is used there from then on does not count, for it is repeated.
A task that is moved runs in two sessions for a while, the one ahead repeating what the other one does (``_Chain.ahead``): each batch is
charged once, in whichever of the two the log has first.
Sessions that are opened there later count like any other. A node may be lost before the log has any session of the task there; then the
task is placed anew without being displaced. Its sessions there are given up when another one, where the task is placed now, takes their
place, whichever of the facts the log gets first. Who takes whose place is the word of the client, so this is believed only of a node that
was lost while the task was placed there, and only of use until an hour after the task was placed anew.

So a stolen key charges for sessions that keys of the tenant could have had, and no more than the node could have delivered meanwhile. Of a
node without a key nothing is checked: its bus does not authenticate its clients.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from bus_schemas.events import (
    DeviceAccounted,
    Event,
    KeyIssued,
    KeyRevoked,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskDisplaced,
    TaskPlaced,
    TaskStayed,
    TaskSubmitted,
    UsageRecorded,
)
from bus_schemas.registration import CORES_MAX, DEVICE_BYTES_MAX, bounded
from bus_schemas.texts import title_of

__all__ = ["UNDATED", "Evidence"]

UNDATED: Final = 0
"""The time of a message whose reader does not know when the broker stored it."""

_SLACK_NS: Final = 3_600 * 10**9
"""How far the clock of a node may be from the broker's, and what it may have measured before its events reached the log."""
_EARLY_NS: Final = 60 * 10**9
_AHEAD_MAX: Final = 4
"""Of each device of a task that is moved, how many sessions may run ahead: tries that failed are made again."""
_IMAGES_MAX: Final = 4
"""Of a chain: a client keeps the one before when it has no answer about the last."""
_DISPLACED: Final = "displaced"
"""Why a session was closed whose memory its node had lost, and whose client continues elsewhere."""
_MS: Final = 10**6
_NODE: Final = "node"


class Work(msgspec.Struct, array_like=True):
    """Core time (the compiler's is not in it), instructions and launches."""

    core_ns: int = 0
    instructions: int = 0
    launches: int = 0

    def add(self, more: Work) -> None:
        self.core_ns += more.core_ns
        self.instructions += more.instructions
        self.launches += more.launches

    def take(self, wanted: Work) -> Work:
        """As much of ``wanted`` as there is, of each: it is no longer here."""
        taken = Work(min(self.core_ns, wanted.core_ns), min(self.instructions, wanted.instructions), min(self.launches, wanted.launches))
        self.add(Work(-taken.core_ns, -taken.instructions, -taken.launches))
        return taken


class _Chain(msgspec.Struct, array_like=True):
    """A session, and those that took its place, one after the other."""

    open: int = 0
    """How many of them are open and count."""
    left: dict[str, None] = {}
    """Those that were displaced."""
    done: Work = msgspec.field(default_factory=Work)
    """What was charged."""
    repeatable: Work = msgspec.field(default_factory=Work)
    """What may be repeated without a charge."""
    begun_ns: int = 0
    """The same of the first batch that is new: it had begun."""
    ahead: dict[str, Work] = {}
    """Sessions that run the batches of another one beside it, until that leaves its node; with what was charged of these batches, and may
    be repeated there without a charge."""
    owed: Work = msgspec.field(default_factory=Work)
    """What was charged of a session ahead before the log had the same work of the other one: that is not charged again."""
    heir: str = ""
    """The session ahead that another one has left its place to; no other one that ran ahead ends the chain by its end."""
    images: dict[int, Work] = {}
    """By number, the last images of its client: what was charged by then, of which nothing is repeated."""
    restored: int = 0
    """The image that the last session that took another one's place was built from, 0: none."""
    unrestored: bool = False
    """No session has taken the place of the displaced one yet."""

    def displace(self, name: str, session: _Session) -> None:
        self.leave(name)
        self.begun_ns += session.begun_ns
        self.repeatable = msgspec.structs.replace(self.done, core_ns=max(0, self.done.core_ns - self.begun_ns))
        self.unrestored = True
        if self.open > len(self.ahead):
            self.restore()

    def restore(self) -> None:
        """A session has taken the place of the displaced one: it repeats nothing of what its image holds."""
        if self.unrestored:
            self.repeatable.take(self.images.get(self.restored, Work()))
        self.unrestored = False

    def hold(self, image: int) -> None:
        """The client has an image of what was charged so far."""
        self.images.pop(image, None)
        self.images[image] = msgspec.structs.replace(self.done)
        while len(self.images) > _IMAGES_MAX:
            del self.images[next(iter(self.images))]

    def leave(self, name: str) -> None:
        """It counts no longer, without anything of it that may be repeated."""
        self.open -= 1
        self.left[name] = None


class _Task(msgspec.Struct, array_like=True):
    tenant: str
    hosts: dict[str, None] = {}
    """Nodes on which it was placed."""
    given_up: dict[str, int] = {}
    """Nodes that were lost when it was displaced, and where it was not placed again; with the time of that."""
    chains: dict[str, _Chain] = {}
    """By the name of their first session."""
    placed: str = ""
    """The node where it was placed last."""
    losses: int = 0
    """How often that node had been lost by then."""
    left: dict[str, int] = {}
    """Nodes that were lost while it was placed there, with the time until which its sessions there may be given up."""
    ahead: dict[str, int] = {}
    """Nodes to which it was moved, with how many sessions there may still run ahead of one elsewhere: the log may have them late."""
    followed: dict[str, None] = {}
    """Chains in which a session has taken another one's place, where the task was placed."""
    leaves: str = ""
    """The node with sessions of it that it is to leave, although that is not lost."""


class _Session(msgspec.Struct, array_like=True):
    """An open session that counts."""

    tenant: str
    task: str
    gpu: int
    title: str
    chain: str
    """Of its task; empty: it has no task that could be displaced."""
    given_up: bool
    """Its task was displaced while the node was lost, or another one has taken its place."""
    leaving: bool
    """It is being ended, because its task is to run elsewhere."""
    stranded: bool = False
    """Its node was lost when it opened, or its task was displaced from there: its client may have left for another one already."""
    begun_ns: int = 0
    """Charged core time of a batch that is not over."""
    given_up_until_ns: int = sys.maxsize
    """What it uses later counts, although it was given up."""
    behind: str = ""
    """The session ahead of it, on the node where its task goes."""


class _Lent(msgspec.Struct, array_like=True):
    """One device of a node with a key. Times of the broker's clock, in ns."""

    #: Open sessions that count.
    sessions: int = 0
    #: Since when it has some.
    since_ns: int = 0
    #: Until when it had some the last time.
    until_ns: int = 0
    #: How long it had some before ``since_ns``.
    lent_ns: int = 0
    #: How much of this is charged.
    wall_ns: int = 0
    #: The interval charged last, of the node's clock, and what was charged in it.
    interval: tuple[int, int, int] = (0, 0, 0)
    core_ns: int = 0
    byte_ms: int = 0
    events: int = 0
    #: Time of the compiler that is charged.
    compile_ns: int = 0

    def opened(self, at_ns: int, stored_ns: int) -> None:
        self.sessions += 1
        if self.sessions == 1:
            self.since_ns = max(self.until_ns, stored_ns - _EARLY_NS, min(at_ns, stored_ns))

    def closed(self, stored_ns: int) -> None:
        self.sessions -= 1
        if not self.sessions:
            self.until_ns = max(stored_ns, self.since_ns)
            self.lent_ns += self.until_ns - self.since_ns


class Evidence(msgspec.Struct, array_like=True):
    """What the log says of keys, tasks, nodes and sessions, as far as usage depends on it."""

    #: Nodes with a key of their own: their keys that are not revoked, by id.
    nodes: dict[str, dict[str, KeyIssued]] = {}
    #: The tenant of every other key; empty: the whole cluster.
    keys: dict[str, str] = {}
    tasks: dict[str, _Task] = {}
    #: By node and index: (cores, bytes of memory).
    devices: dict[str, dict[int, tuple[int, int]]] = {}
    #: By node and name.
    sessions: dict[str, dict[str, _Session]] = {}
    #: Nodes that are lost.
    away: dict[str, None] = {}
    #: How often each node was lost.
    losses: dict[str, int] = {}
    #: By node and index of the device.
    lent: dict[str, dict[int, _Lent]] = {}

    def apply(self, event: Event, stored_ns: int) -> str:
        """Fold in one event, stored at ``stored_ns``; why a session in it does not count, or empty."""
        match event:
            case KeyIssued():
                if event.role == _NODE:
                    self._secure(event.node, stored_ns)
                    self.nodes.setdefault(event.node, {}).setdefault(event.key, msgspec.structs.replace(event, secret_hash=""))
                else:
                    self.keys.setdefault(event.key, event.tenant)
            case KeyRevoked():
                for keys in self.nodes.values():
                    keys.pop(event.key, None)
            case TaskSubmitted():
                self.tasks.setdefault(event.task, _Task(event.tenant))
            case TaskPlaced():
                self._placed(event)
            case TaskDisplaced():
                self._displaced(event)
            case TaskStayed():
                if event.task in self.tasks:
                    self.tasks[event.task].leaves = ""
                for session in self.sessions.get(event.node, {}).values():
                    session.leaving &= session.task != event.task
            case NodeLost():
                self.away[event.node] = None
                self.losses[event.node] = self.losses.get(event.node, 0) + 1
            case NodeRecovered():
                self.away.pop(event.node, None)
            case NodeRegistered():
                self.away.pop(event.node, None)
                self.devices[event.node] = {
                    device.index: (min(device.cores, CORES_MAX), min(device.vram_bytes, DEVICE_BYTES_MAX))
                    for device in bounded(event, self.nodes.get(event.node, {}).values())[0].devices
                }
            case SessionOpenedFact():
                return self._opened(event, stored_ns)
            case SessionClosedFact():
                known = self.sessions.get(event.node, {}).pop(event.session, None)
                if known is not None:
                    self._closed(known, event)
                    if event.node in self.nodes:
                        self._lent(event.node, known.gpu).closed(stored_ns)
            case _:
                pass
        return ""

    def reached_ns(self, accounts: DeviceAccounted, stored_ns: int) -> int:
        """The moment that the log has come to with these accounts: no later than the clocks of node and broker may differ, because budgets
        open again by it."""
        at_ns = accounts.from_ns + accounts.wall_ns
        return at_ns if stored_ns == UNDATED or accounts.node not in self.nodes else min(at_ns, stored_ns + _SLACK_NS)

    def title(self, usage: UsageRecorded) -> str:
        """The title of the session that used it."""
        known = self.sessions.get(usage.node, {}).get(usage.session)
        return known.title if known is not None else ""

    def given_up(self, usage: UsageRecorded) -> bool:
        """Whether it does not count, because its session was given up."""
        known = self.sessions.get(usage.node, {}).get(usage.session)
        return known is not None and known.given_up and usage.to_ns <= known.given_up_until_ns

    def counted(self, usage: UsageRecorded) -> Work:
        """What counts of usage that is believed: not what is repeated. With the compiler's time."""
        known = self.sessions.get(usage.node, {}).get(usage.session)
        if known is None or not known.chain or known.given_up:
            return Work(usage.charged_core_ns, usage.instructions, usage.launches)
        chain = self.tasks[known.task].chains[known.chain]
        known.begun_ns = usage.begun_ns
        if usage.session in chain.ahead:
            return _counted_ahead(chain, usage)
        resumed_ns = min(chain.begun_ns, usage.resumed_ns)
        chain.begun_ns -= resumed_ns
        free = chain.repeatable.take(Work(usage.displaced_ns, usage.displaced_instructions, usage.displaced_launches))
        begun_ns = min(chain.begun_ns, usage.displaced_ns - free.core_ns)  # the batch that had begun is among those
        chain.begun_ns -= begun_ns
        counts = Work(
            usage.core_ns - usage.recovered_ns - free.core_ns - begun_ns - resumed_ns,
            usage.instructions - free.instructions,
            usage.launches - free.launches,
        )
        if known.behind:
            owed = chain.owed.take(counts)
            counts.add(Work(-owed.core_ns, -owed.instructions, -owed.launches))
            for shared in chain.ahead.values():
                shared.add(counts)
        chain.done.add(counts)
        if usage.core_ns > usage.recovered_ns + usage.displaced_ns:
            chain.repeatable = Work()  # there is something new, so all is repeated that is to be
        if usage.core_ns > usage.recovered_ns + usage.displaced_ns + usage.resumed_ns:
            chain.begun_ns = 0
        if usage.image:
            chain.hold(usage.image)
        counts.core_ns += usage.compile_ns
        return counts

    def _secure(self, node: str, stored_ns: int) -> None:
        """The node gets its first key: from now on it is charged only while it has sessions, and those that are open count."""
        if node not in self.nodes:
            for session in self.sessions.get(node, {}).values():
                self._lent(node, session.gpu).opened(stored_ns, stored_ns)

    def _task(self, name: str, tenant: str) -> _Task | None:
        """This task, if it is this tenant's."""
        task = self.tasks.get(name)
        return task if task is not None and task.tenant == tenant else None

    def _placed(self, event: TaskPlaced) -> None:
        task = self.tasks.get(event.task)
        if task is None:
            return
        if task.placed not in ("", event.node) and self.losses.get(task.placed, 0) > task.losses:
            task.left[task.placed] = event.at_ns + _SLACK_NS
        task.hosts[event.node], task.leaves = None, ""
        task.given_up.pop(event.node, None)
        task.left.pop(event.node, None)
        task.placed, task.losses = event.node, self.losses.get(event.node, 0)

    def _displaced(self, event: TaskDisplaced) -> None:
        task = self.tasks.get(event.task)
        if task is None:
            return
        if event.gpus:
            task.hosts[event.to], task.ahead[event.to] = None, len(event.gpus) * _AHEAD_MAX
            task.given_up.pop(event.to, None)
            task.left.pop(event.to, None)
        task.leaves = ""
        if event.lost:
            task.given_up[event.node] = event.at_ns
        for name, session in self.sessions.get(event.node, {}).items():
            if session.task != event.task or not session.chain or session.given_up:
                continue
            session.given_up, session.leaving = event.lost, not event.lost
            if event.lost:
                task.chains[session.chain].displace(name, session)
            else:
                task.leaves = event.node

    def _closed(self, session: _Session, event: SessionClosedFact) -> None:
        if not session.chain or session.given_up:
            return
        task, name = self.tasks[session.task], event.session
        chain = task.chains[session.chain]
        shared = chain.ahead.pop(name, None)
        if shared is not None and name == chain.heir and event.failed:
            chain.repeatable = shared  # the session in its place has that still to repeat
        goes = next((node for node in task.hosts if session.behind in self.sessions.get(node, {})), "")
        if goes and session.leaving and not event.failed:
            chain.leave(name)
            chain.heir, task.leaves, task.placed, task.losses = session.behind, "", goes, self.losses.get(goes, 0)
            return
        if session.leaving or session.stranded or (event.failed and event.reason == _DISPLACED):
            chain.displace(name, session)
            return
        chain.open -= 1
        if not chain.open and not (shared is not None and name != chain.heir and chain.left):
            del task.chains[session.chain]

    def refusal(self, usage: UsageRecorded, stored_ns: int) -> str:
        """Why this usage is not believed; empty: it is, and is taken off what the device may charge."""
        if usage.node not in self.nodes:
            return ""
        known = self.sessions.get(usage.node, {}).get(usage.session)
        if known is None:
            return "no such session counts there"
        if (usage.tenant, usage.task, usage.gpu) != (known.tenant, known.task, known.gpu):
            return "its session has another tenant, task or device"
        device = self.devices.get(usage.node, {}).get(usage.gpu)
        if device is None:
            return "the node has no such device"
        return _charge(self._lent(usage.node, usage.gpu), usage, *device, stored_ns)

    def _opened(self, event: SessionOpenedFact, stored_ns: int) -> str:
        sessions = self.sessions.setdefault(event.node, {})
        if event.session in sessions:
            return ""  # announced again
        why = self._doubt(event) if event.node in self.nodes else ""
        if not why:
            sessions[event.session] = self._session(event)
            if event.node in self.nodes:
                self._lent(event.node, event.gpu).opened(event.at_ns, stored_ns)
        return why

    def _session(self, event: SessionOpenedFact) -> _Session:
        """One that begins to count. It is given up if the fact of it came late: it was opened before its task was displaced, or another one
        has taken its place elsewhere. It leaves if others of its task on the node do."""
        session = _Session(event.tenant, event.task, event.gpu, title_of(event.title), "", False, False)
        task = self._task(event.task, event.tenant)
        if task is None:
            return session
        session.chain = self._chain_of(task, event)
        chain = task.chains.setdefault(session.chain, _Chain())
        chain.open += 1
        others = (self.sessions.get(node, {}).get(event.replaces) for node in task.hosts if node != event.node)
        other = next((other for other in others if other is not None and other.chain == session.chain), None)
        if other is not None and task.ahead.get(event.node, 0):
            task.ahead[event.node] -= 1
            other.behind, chain.ahead[event.session] = event.session, msgspec.structs.replace(chain.done)
            chain.ahead[event.session].take(chain.images.get(event.image, Work()))
        elif event.node == task.leaves:
            before = self.sessions[event.node].get(event.replaces)  # its node started anew while another one runs ahead, or ran
            session.behind = next(reversed(chain.ahead), before.behind if before is not None else "")
        session.stranded = event.node in task.given_up or event.node in self.away
        others_leave = any(one.leaving and one.task == event.task for one in self.sessions[event.node].values())
        session.leaving = event.node == task.leaves or others_leave
        lost = event.node in self.away and event.node in task.given_up  # whatever the node's clock says
        until_ns = task.left.get(event.node, 0) if session.chain in task.followed else 0
        if event.at_ns < until_ns:
            session.given_up_until_ns = until_ns
        if event.at_ns < until_ns or lost or event.at_ns < task.given_up.get(event.node, 0):
            session.given_up = True
            chain.leave(event.session)
        elif event.replaces:
            if event.session not in chain.ahead:
                chain.restored = event.image
                chain.restore()
            if event.node == task.placed:
                task.followed[session.chain] = None
                self._give_up(event.task, session.chain)
        return session

    def _give_up(self, name: str, chain: str) -> None:
        """Sessions of this chain of a task elsewhere do not count any more, for one where the task is placed now takes their place."""
        task = self.tasks[name]
        for node, until_ns in task.left.items():
            for session, known in self.sessions.get(node, {}).items():
                if (known.task, known.chain) == (name, chain) and not (known.given_up or known.leaving):
                    known.given_up, known.given_up_until_ns = True, until_ns
                    task.chains[chain].displace(session, known)

    def _chain_of(self, task: _Task, event: SessionOpenedFact) -> str:
        """The chain of the session whose place this one takes, or its own. The log may not have that one yet."""
        if event.origin or not event.replaces:
            return event.origin or event.session
        for node in task.hosts:
            known = self.sessions.get(node, {}).get(event.replaces)
            if known is not None and known.chain and (known.task, known.tenant) == (event.task, event.tenant):
                return known.chain
        return next((name for name, chain in task.chains.items() if event.replaces in chain.left), event.replaces)

    def _doubt(self, event: SessionOpenedFact) -> str:
        """Why this session of a node with a key does not count, or empty."""
        owner = self.keys.get(event.session.partition("-")[0])
        if owner is None or owner not in ("", event.tenant):
            return "its name is of no key of the tenant"
        if not event.task:
            return ""
        task = self.tasks.get(event.task)
        if task is None or (owner and task.tenant != event.tenant):
            return "the tenant has no such task"
        return "" if event.node in task.hosts else "its task was not placed on the node"

    def _lent(self, node: str, gpu: int) -> _Lent:
        return self.lent.setdefault(node, {}).setdefault(gpu, _Lent())


def _counted_ahead(chain: _Chain, usage: UsageRecorded) -> Work:
    """What counts of a session that runs ahead of another one, with the compiler's time: not what it repeats, whichever of the two the log
    has first."""
    repeated = Work(usage.displaced_ns, usage.displaced_instructions, usage.displaced_launches)
    free = chain.ahead[usage.session].take(repeated)
    chain.owed.add(Work(repeated.core_ns - free.core_ns, repeated.instructions - free.instructions, repeated.launches - free.launches))
    counts = Work(usage.core_ns - usage.recovered_ns - free.core_ns, usage.instructions - free.instructions, usage.launches - free.launches)
    chain.done.add(counts)
    if usage.core_ns > usage.recovered_ns + usage.displaced_ns:
        del chain.ahead[usage.session]  # there is something new: it runs alone
    if usage.image:
        chain.hold(usage.image)
    return Work(counts.core_ns + usage.compile_ns, counts.instructions, counts.launches)


def _charge(lent: _Lent, usage: UsageRecorded, cores: int, nbytes: int, stored_ns: int) -> str:
    """Take ``usage`` off what a device may charge; why it may not, with nothing changed."""
    interval = (usage.epoch, usage.from_ns, usage.to_ns)
    wall_ns = usage.to_ns - usage.from_ns
    same = interval == lent.interval
    core_ns = usage.core_ns + (lent.core_ns if same else 0)
    byte_ms = usage.byte_ms + (lent.byte_ms if same else 0)
    events = 1 + (lent.events if same else 0)
    total_ns = lent.wall_ns + (0 if same else wall_ns)
    compile_ns = lent.compile_ns + usage.compile_ns
    if wall_ns <= 0 or core_ns > wall_ns * cores:
        return "more core time than the device has in its interval"
    if (byte_ms - events) * _MS > wall_ns * nbytes:  # what is less than a byte-millisecond is carried from interval to interval
        return "more memory than the device has in its interval"
    if stored_ns != UNDATED:
        if not lent.since_ns - _SLACK_NS <= usage.from_ns < usage.to_ns <= stored_ns + _SLACK_NS:
            return "it is dated before its session or in the future"
        lent_ns = lent.lent_ns + max(0, stored_ns - lent.since_ns if lent.sessions else 0) + _SLACK_NS
        if max(total_ns, compile_ns) > lent_ns:
            return "more time than the device had sessions for"
    lent.interval, lent.core_ns, lent.byte_ms, lent.events, lent.wall_ns = interval, core_ns, byte_ms, events, total_ns
    lent.compile_ns = compile_ns
    return ""
