"""Metering of one device: its timeline cut into intervals, every core-nanosecond of which is charged, scheduler or idle. Pure.

Rules:

1. The timeline starts when the meter does and has no holes: each interval begins where the last one ended.
2. charged + scheduler + idle == wall x cores, exactly, in every interval. A launch charges its ``core_ns``; what it left unoccupied is
   idle. While the executor works on a batch outside its launch, all cores count as scheduler: nothing else can run then.
3. A launch that spans intervals is split in proportion, by differences of floors, so that the parts add up to the whole.
4. Memory is charged as the exact integral of resident bytes over time; a session's byte-milliseconds are floored, the rest carried. Memory
   that sessions share is divided among them without remainder by who reports it, and a change of one's part is reported with that of all
   others' at one instant: so what sessions are charged for is at every instant what is on the device.
5. What the compiler did for a session is charged beside the timeline: it takes a core of the processor, none of the device.

No clock: every time is an argument, on the node's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from bus_schemas.events import DeviceAccounted, Event, UsageRecorded

INTERVAL_NS: Final = 10**9
"""The longest interval while sessions are open: a usage fact belongs to the minute it begins in."""

TOTAL_MAX: Final = (1 << 64) - 1

_IDLE_INTERVAL_NS: Final = 60 * 10**9
_MS: Final = 10**6


class Account(msgspec.Struct, array_like=True):
    """One session's totals, and what its next interval starts from. ``byte_ns``: what no fact has said yet, less than a byte-millisecond;
    ``byte_ms``: what facts have said. Totals stop at TOTAL_MAX (80 GB for two days and a half), for journal and log hold 64 bits; facts of
    usage go on, and bills are made of those."""

    session: str
    tenant: str
    task: str
    priority: int
    resident_bytes: int = 0
    core_ns: int = 0
    byte_ns: int = 0
    byte_ms: int = 0
    instructions: int = 0
    launches: int = 0
    compile_ns: int = 0
    principal: str = ""
    """Whose connection the session is."""
    seq_done: int = 0
    """The last batch whose work is in these totals."""
    replayed: int = 0
    """Batches up to this one repeat what a lost session did. If that was here, they count nowhere, but for core time beyond
    ``recover_ns``."""
    recover_ns: int = 0
    """Core time that may still be repeated without a charge."""
    recover_ns_max: int = 0
    """The same when the session was opened."""
    elsewhere: bool = False
    """They repeat work of another node, as the client says: the bill decides how much of it counts."""
    displaced_ns: int = 0
    displaced_instructions: int = 0
    displaced_launches: int = 0
    """What these used, of the totals."""
    begun_ns: int = 0
    """Core time, of the totals, of the slices of the last batch, which is not over and repeats none."""
    resume_ns: int = 0
    """Core time that the first batch with a launch after ``replayed`` may still repeat without a charge, for slices of it were charged
    before."""
    resume_ns_max: int = 0
    """The same when the session was opened."""


@dataclass(slots=True)
class _Launch:
    session: str
    start_ns: int
    end_ns: int
    core_ns: int
    instructions: int
    launches: int
    repeats: bool
    repeated_ns: int
    resumes: bool


@dataclass(slots=True)
class _Use:
    """One session in one interval."""

    core_ns: int = 0
    byte_ns: int = 0
    instructions: int = 0
    launches: int = 0
    compile_ns: int = 0
    repeated_ns: int = 0
    resumed_ns: int = 0
    repeated_instructions: int = 0
    repeated_launches: int = 0
    image: int = 0


@dataclass(slots=True)
class Meter:
    """``accounted_ns``: up to here everything is in facts. ``unix_offset_ns``: Unix time minus monotonic time. ``finish_ns``: end of
    the last work reported; ``serial`` and ``device_serial``: the last ones given out. ``images``: by session, the number of an image that
    its client has of all that is reported; in the fact that has the last of this."""

    node: str
    epoch: int
    gpu: int
    cores: int
    accounted_ns: int
    unix_offset_ns: int
    accounts: dict[str, Account] = field(default_factory=dict)
    finish_ns: int = 0
    serial: int = 0
    device_serial: int = 0
    images: dict[str, int] = field(default_factory=dict)
    _launches: list[_Launch] = field(default_factory=list)
    _scheduler: list[tuple[int, int]] = field(default_factory=list)
    _resident: list[tuple[int, str, int]] = field(default_factory=list)
    _compiled: dict[str, int] = field(default_factory=dict)

    def dated(self, unix_offset_ns: int) -> None:
        """What Unix time is beside the monotonic clock now. Intervals from here on are dated by it when the machine's clock was set, or the
        machine slept (its monotonic clock with it); else they go on, each beginning where the last one ended."""
        if abs(unix_offset_ns - self.unix_offset_ns) > INTERVAL_NS:
            self.unix_offset_ns = unix_offset_ns

    def open(self, account: Account) -> None:
        """A session may be charged from now on. (v1 journals store cumulative byte-nanoseconds, including those already in facts:
        convert.)"""
        if account.byte_ns >= _MS:
            account.byte_ns -= account.byte_ms * _MS
        self.accounts[account.session] = account

    def close(self, session: str) -> Account | None:
        """Forget a session whose last interval is cut; its totals."""
        self.images.pop(session, None)
        return self.accounts.pop(session, None)

    def resident(self, session: str, nbytes: int, at_ns: int) -> None:
        """From ``at_ns`` on the session is charged for ``nbytes``."""
        self._resident.append((max(at_ns, self.accounted_ns), session, nbytes))

    def compiled(self, session: str, compile_ns: int) -> None:
        """The compiler worked for the session; it is charged in the interval that is cut next."""
        if compile_ns > 0:
            self._compiled[session] = self._compiled.get(session, 0) + compile_ns

    def released(self, session: str, others: Sequence[tuple[str, int]], at_ns: int) -> None:
        """The executor gave the session's memory back at ``at_ns``, between two works; ``others`` as in ``work``."""
        self.finish_ns = at_ns = max(at_ns, self.finish_ns)
        for name, nbytes in ((session, 0), *others):
            self.resident(name, nbytes, at_ns)

    def work(
        self,
        session: str,
        *,
        begin_ns: int,
        start_ns: int,
        end_ns: int,
        finish_ns: int,
        core_ns: int,
        instructions: int,
        launches: int,
        resident_bytes: int,
        others: Sequence[tuple[str, int]] = (),
        repeats: bool = False,
        resumes: bool = False,
    ) -> None:
        """The executor worked on a batch over [begin, finish), its launch over [start, end) within; reported in order of time.
        ``resident_bytes``: what the session is charged for from ``finish_ns`` on; ``others``: the same of others for which that changed.
        ``repeats``: a lost session did the same before. ``resumes``: it had begun the same batch."""
        begin_ns = max(begin_ns, self.finish_ns, self.accounted_ns)
        start_ns = max(start_ns, begin_ns)
        end_ns = max(end_ns, start_ns)
        finish_ns = max(finish_ns, end_ns)
        if not (launches or core_ns):  # a slice in which answers were read only
            start_ns = end_ns = finish_ns
        if start_ns > begin_ns:
            self._scheduler.append((begin_ns, start_ns))
        if finish_ns > end_ns:
            self._scheduler.append((end_ns, finish_ns))
        if session in self.accounts:
            core_ns = min(core_ns, (end_ns - start_ns) * self.cores)
            if launches or core_ns:  # all but a batch's last slice are no launch of their own
                repeated_ns = core_ns if repeats else self._resumed(self.accounts[session], core_ns) if resumes else 0
                self._launches.append(_Launch(session, start_ns, end_ns, core_ns, instructions, launches, repeats, repeated_ns, resumes))
            self.resident(session, resident_bytes, finish_ns)
        for other, nbytes in others:
            self.resident(other, nbytes, finish_ns)
        self.finish_ns = finish_ns

    @staticmethod
    def _resumed(account: Account, core_ns: int) -> int:
        """How much of a slice repeats slices that were charged before."""
        repeated_ns = min(core_ns, account.resume_ns)
        account.resume_ns -= repeated_ns
        return repeated_ns

    def cut(self, until_ns: int, *, whole: bool = True) -> list[Event]:
        """The facts of [accounted, until): per interval its UsageRecorded, then the DeviceAccounted that names them. ``until_ns`` must not
        lie within work that is not reported yet. Not ``whole``: an idle tail shorter than an idle interval is left for later."""
        events: list[Event] = []
        busy = bool(self.accounts or self._launches or self._scheduler or self._resident)
        if not busy and not whole and until_ns - self.accounted_ns < _IDLE_INTERVAL_NS:
            return events
        step = INTERVAL_NS if busy else _IDLE_INTERVAL_NS
        while self.accounted_ns < until_ns:
            events += self._interval(min(until_ns, self.accounted_ns + step))
        return events

    # -- one interval ------------------------------------------------------------------------------------------------------------------

    def _interval(self, to_ns: int) -> list[Event]:
        from_ns = self.accounted_ns
        uses: dict[str, _Use] = {}
        charged, launch_ns = self._charge(uses, to_ns)
        scheduler = self._schedule(to_ns) * self.cores
        self._hold(uses, from_ns, to_ns)
        for session, compile_ns in self._compiled.items():
            if session in self.accounts:
                uses.setdefault(session, _Use()).compile_ns = compile_ns
        self._compiled.clear()
        under_way = {launch.session for launch in self._launches}
        for session in [name for name in self.images if name not in under_way]:
            uses.setdefault(session, _Use()).image = self.images.pop(session)
        serial_first = self.serial + 1
        events: list[Event] = []
        for session, use in uses.items():
            fact = self._fact(session, use, from_ns, to_ns)
            if fact is not None:
                events.append(fact)
        wall = to_ns - from_ns
        self.device_serial += 1
        idle = wall * self.cores - charged - scheduler
        assert idle >= 0, "work of an executor does not overlap"
        at = from_ns + self.unix_offset_ns
        events.append(
            DeviceAccounted(
                node=self.node,
                epoch=self.epoch,
                gpu=self.gpu,
                serial=self.device_serial,
                from_ns=at,
                wall_ns=wall,
                cores=self.cores,
                charged_core_ns=charged,
                scheduler_core_ns=scheduler,
                idle_core_ns=idle,
                serial_first=serial_first,
                serial_last=self.serial,
                launch_ns=launch_ns,
            )
        )
        self.accounted_ns = to_ns
        return events

    def _charge(self, uses: dict[str, _Use], to_ns: int) -> tuple[int, int]:
        """Core time and wall time of launches before ``to_ns``; one that still runs is cut there."""
        charged = launch_ns = 0
        rest: list[_Launch] = []
        for launch in self._launches:
            if launch.start_ns >= to_ns and not launch.end_ns == to_ns:
                rest.append(launch)
                continue
            use = uses.setdefault(launch.session, _Use())
            launch_ns += min(launch.end_ns, to_ns) - launch.start_ns
            if launch.end_ns <= to_ns:
                part = launch.core_ns
                if launch.repeats:
                    use.repeated_instructions += launch.instructions
                    use.repeated_launches += launch.launches
                else:
                    use.instructions += launch.instructions
                    use.launches += launch.launches
            else:
                part = launch.core_ns * (to_ns - launch.start_ns) // (launch.end_ns - launch.start_ns)
                left_ns = launch.repeated_ns - min(part, launch.repeated_ns)
                rest.append(replace(launch, start_ns=to_ns, core_ns=launch.core_ns - part, repeated_ns=left_ns))
            use.core_ns += part
            use.repeated_ns += min(part, launch.repeated_ns)
            account = self.accounts.get(launch.session)
            if account is not None and not launch.repeats:
                account.begun_ns = 0 if launch.launches and launch.end_ns <= to_ns else account.begun_ns + part
                use.resumed_ns += max(0, part - launch.repeated_ns) if launch.resumes and account.elsewhere else 0
            charged += part
        self._launches = rest
        return charged, launch_ns

    def _schedule(self, to_ns: int) -> int:
        """Nanoseconds of scheduler work before ``to_ns``."""
        total = 0
        rest: list[tuple[int, int]] = []
        for start_ns, end_ns in self._scheduler:
            total += max(0, min(end_ns, to_ns) - start_ns)
            if end_ns > to_ns:
                rest.append((max(start_ns, to_ns), end_ns))
        self._scheduler = rest
        return total

    def _hold(self, uses: dict[str, _Use], from_ns: int, to_ns: int) -> None:
        """Integrate every session's resident bytes over [from, to)."""
        since = dict.fromkeys(self.accounts, from_ns)
        rest: list[tuple[int, str, int]] = []
        for at_ns, session, nbytes in self._resident:
            if at_ns >= to_ns:
                rest.append((at_ns, session, nbytes))
                continue
            account = self.accounts.get(session)
            if account is None:
                continue
            at_ns = max(at_ns, since[session])
            uses.setdefault(session, _Use()).byte_ns += account.resident_bytes * (at_ns - since[session])
            account.resident_bytes = nbytes
            since[session] = at_ns
        for session, start_ns in since.items():
            held = self.accounts[session].resident_bytes
            if held:
                uses.setdefault(session, _Use()).byte_ns += held * (to_ns - start_ns)
        self._resident = rest

    def _fact(self, session: str, use: _Use, from_ns: int, to_ns: int) -> UsageRecorded | None:
        account = self.accounts[session]
        repeated = _repeated(account, use)
        byte_ms, account.byte_ns = divmod(account.byte_ns + use.byte_ns, _MS)
        account.byte_ms = min(account.byte_ms + byte_ms, TOTAL_MAX)
        account.core_ns = min(account.core_ns + use.core_ns, TOTAL_MAX)
        account.instructions = min(account.instructions + use.instructions, TOTAL_MAX)
        account.launches += use.launches
        account.compile_ns = min(account.compile_ns + use.compile_ns, TOTAL_MAX)
        if not (use.core_ns or byte_ms or use.instructions or use.launches or use.compile_ns or use.image):
            return None
        recovered_ns, displaced_ns, displaced_instructions, displaced_launches = repeated
        self.serial += 1
        return UsageRecorded(
            node=self.node,
            epoch=self.epoch,
            gpu=self.gpu,
            serial=self.serial,
            session=session,
            tenant=account.tenant,
            task=account.task,
            priority=account.priority,
            from_ns=from_ns + self.unix_offset_ns,
            to_ns=to_ns + self.unix_offset_ns,
            core_ns=use.core_ns,
            byte_ms=byte_ms,
            instructions=use.instructions,
            launches=use.launches,
            compile_ns=use.compile_ns,
            recovered_ns=recovered_ns,
            displaced_ns=displaced_ns,
            displaced_instructions=displaced_instructions,
            displaced_launches=displaced_launches,
            begun_ns=_begun_ns(account),
            resumed_ns=use.resumed_ns,
            image=use.image,
        )


def _begun_ns(account: Account) -> int:
    """Core time of the batch that is not over, with what a lost session was charged for it."""
    return max(account.begun_ns, account.resume_ns_max if account.seq_done <= account.replayed else 0)


def _repeated(account: Account, use: _Use) -> tuple[int, int, int, int]:
    """Of what repeats other work: the core time that this node knows of, and core time, instructions and launches of another node's, which
    count like new ones, and the facts say which they are. (If some is known here, so are the launches of all.)"""
    recovered_ns = min(use.repeated_ns, account.recover_ns)
    account.recover_ns -= recovered_ns
    if not account.elsewhere:
        return (recovered_ns, 0, 0, 0)
    displaced_ns = use.repeated_ns - recovered_ns
    account.displaced_ns = min(account.displaced_ns + displaced_ns, TOTAL_MAX)
    if account.recover_ns_max:
        return (recovered_ns, displaced_ns, 0, 0)
    use.instructions += use.repeated_instructions
    use.launches += use.repeated_launches
    account.displaced_instructions = min(account.displaced_instructions + use.repeated_instructions, TOTAL_MAX)
    account.displaced_launches += use.repeated_launches
    return (recovered_ns, displaced_ns, use.repeated_instructions, use.repeated_launches)
