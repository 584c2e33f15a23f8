"""Finding a node and opening a session on it: directly on the bus, or placed by the controller: submit a task, poll while it is queued,
withdraw it when the script leaves; and follow the task to another node.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import string
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bus_schemas import subjects
from bus_schemas.session import NodeInfo, OpenSession, SessionOpened
from bus_schemas.terms import TaskTerms
from bus_schemas.texts import title_of
from wooly import outcome, progress
from wooly.config import Config
from wooly.errors import (
    ApiError,
    ConfigError,
    NoServerError,
    PlacementError,
    ProtocolError,
    QuotaReachedError,
    SessionLostError,
    TaskCancelledError,
    WoolyError,
    from_fault,
    quota_reached,
)
from wooly.transport.bus import BusThread, NoAnswer
from wooly.transport.patience import Away, repeat

if TYPE_CHECKING:
    from wooly.api import Client
    from wooly.api.answers import Task, Waiting

__all__ = ["Lost", "Opening"]


@dataclass(frozen=True, slots=True)
class Lost:
    """A session that is lost, and is built again in another one."""

    session: str
    #: by how much the number of a repeated batch is lower there
    skips: int
    #: the number there of the last batch that was executed before
    repeats: int
    #: its task is to leave its node
    displaced: bool = False
    #: the number there of the last batch that another session ran as well, on the node that this one's task left
    shared: int = 0
    #: the image that it is built from, 0: none
    image: int = 0


_TIMEOUT_S: Final = 8.0
_POLL_S: Final = 0.5
_EXPLAIN_S: Final = 1.0
_EXPLAIN_MAX_S: Final = 5.0
_AWAY_MAX_S: Final = 60.0
"""Time without an answer of the controller after which a waiting script gives up."""
_MIB: Final = 1 << 20
_GANG_MAX: Final = 64
"""Ranks that are placed together; more are placed one by one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the task goes, and what its sessions ask the node for."""

    node: str
    #: indices of devices of the node, in the order of the script's
    gpus: tuple[int, ...]
    terms: TaskTerms
    #: of the decision in the log: it tells apart two placements on one node
    position: int = 0


_places: dict[tuple[int, Config], tuple[Place, set[int]]] = {}
_lock: Final = threading.Lock()


def place_for(config: Config, title: str, device: int) -> Place:
    """The place of this process's task, for its device ``device``: one task serves all devices of a script, each once.

    Raises what ``ask`` does."""
    key = (os.getpid(), config)
    with _lock:
        known = _places.get(key)
        if known is None or device in known[1]:  # the device's session ended, and the task with it
            known = _places[key] = (ask(config, title), set())
        known[1].add(device)
        return known[0]


def _moved(config: Config, place: Place) -> None:
    """The task of this process is placed there from now on."""
    key = (os.getpid(), config)
    with _lock:
        known = _places.get(key)
        if known is not None and known[0].terms.task == place.terms.task:
            _places[key] = (place, known[1])


def ask(config: Config, title: str) -> Place:
    """Submit a task, or take up the one that WOOLY_TASK_ID names, wait for room if it queues, and return its place.

    Raises PlacementError with the controller's reason, TaskCancelledError when the task is cancelled while it waits, ConfigError.
    """
    client, refusal = _client(config), None
    try:
        task = repeat(lambda: _get(client, config.task_id), config.start_wait_s) if config.task_id else _submit(client, config, title)
    except _NodesLostError as error:
        wait_ms = int(config.start_wait_s * 1_000)
        if not wait_ms:
            raise
        refusal, task = error, _submit(client, config, title, queue_timeout_ms=wait_ms)
    if task.node is None and task.state == "queued":
        task = _wait(client, task, own=not config.task_id)
    if refusal is not None and task.state == "failed":  # none of the nodes came back
        raise refusal
    return _place(task, config.tenant, title)


class _NodesLostError(PlacementError):
    """The nodes that could serve the task are lost, and may come back."""


def _client(config: Config, timeout_s: float = _TIMEOUT_S) -> Client:
    from wooly.api import Client  # only with a controller

    return Client(config.controller_url, api_key=config.api_key, ca=config.tls_ca, insecure=config.insecure, timeout_s=timeout_s)


def _place(task: Task, tenant: str, title: str) -> Place:
    """Raises PlacementError when the task is over."""
    if task.state == "cancelled":
        raise TaskCancelledError(f"task {task.id} was {task.reason or 'cancelled'}")
    if task.state not in ("queued", "started") or task.node is None:
        raise PlacementError(f"task {task.id} is {task.state}{f': {task.reason}' if task.reason else ''}; submit a new one")
    terms = TaskTerms(
        tenant=tenant,
        task=task.id,
        title=title,
        priority=task.priority,
        vram_bytes=0 if task.vram_grows else task.required_vram_mb * _MIB,
        exclusive=task.gpu_mode == "Exclusive",
        swap=not task.noswap,
        weight=task.weight,
        sla_ms_p99=task.sla_ms_p99,
        pace_percent=task.pace_percent,
    )
    return Place(task.node, tuple(task.gpus) or (0,), terms, _decided(task))


def _decided(task: Task) -> int:
    """Names the placement of a task that has one."""
    return task.placement.position if task.placement is not None else 0


def _wait(client: Client, task: Task, *, own: bool) -> Task:
    """Poll until the task is placed or over, and say why it waits. ``own``: this script submitted it, so leaving withdraws it."""
    began_s = answered_s = time.monotonic()
    explain_s, pause_s = began_s, _EXPLAIN_S
    outcome.watch()
    with progress.WaitingLine() as line:

        def leave(*_: object) -> None:
            line.left(task.id, withdrawn=own and _withdraw(client, task.id))

        stay = outcome.on_kill(leave)
        try:
            while task.node is None and task.state == "queued":
                now_s = time.monotonic()
                try:
                    if now_s >= explain_s:
                        explain_s, pause_s = now_s + pause_s, min(pause_s * 1.5, _EXPLAIN_MAX_S)
                        line.show(_why_waiting(client, task.id), now_s - began_s)
                    time.sleep(_POLL_S)
                    task = _get(client, task.id)
                    answered_s = time.monotonic()
                except Away as away:
                    if time.monotonic() - answered_s > _AWAY_MAX_S:
                        raise away.error from None
                    line.show(None, time.monotonic() - began_s)
        except BaseException:  # Ctrl-C above all: the place in the queue is given back
            leave()
            raise
        finally:
            stay()
    return task


def _submit(client: Client, config: Config, title: str, queue_timeout_ms: int = 0) -> Task:
    """``queue_timeout_ms``: it waits for a place so long, even if the configuration says that it does not."""
    says_tenant = "WOOLY_TENANT" in config.origin or not config.api_key  # else the key determines it
    new_id = uuid.uuid4().hex  # a repeated request is the same task

    def submit() -> Task:
        with _errors("refused the task"):
            return client.submit(
                config.required_vram_mb,
                id=new_id,
                tenant=config.tenant if says_tenant else None,
                priority=config.prio,
                gpu_count=config.device_count,
                gpu_mode="Exclusive" if config.gpu_mode == "Exclusive" else "Shared",
                groups=config.controller_node_group_ids,
                noswap=not config.swap_from_vram,
                title=title,
                queue=config.queue or queue_timeout_ms > 0,
                queue_timeout_ms=queue_timeout_ms,
                weight=config.weight,
                sla_ms_p99=config.sla_ms_p99,
                pace_percent=config.pace_percent,
                **(_gang(os.environ) if config.queue else {}),
            )

    return repeat(submit, config.start_wait_s)


def _gang(environ: Mapping[str, str]) -> dict[str, Any]:
    """The gang of a process that a launcher such as torchrun started: all ranks of its script, this time. None without a queue: a rank for
    which there is no room fails at once."""
    size = environ.get("WORLD_SIZE", "")
    if "LOCAL_RANK" not in environ or not size.isdecimal() or not 1 < int(size) <= _GANG_MAX:
        return {}
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    script = "\0".join(environ.get(name, "") for name in names)
    return {"gang": f"ranks-{hashlib.blake2b(script.encode(), digest_size=16).hexdigest()}", "gang_size": int(size)}


def _get(client: Client, task: str) -> Task:
    with _errors("does not show the task"):
        return client.task(task)


def _why_waiting(client: Client, task: str) -> Waiting | None:
    """None once it does not wait any more."""
    try:
        with _errors("does not show the task"):
            return client.waiting(task)
    except PlacementError:
        return None


def _withdraw(client: Client, task: str) -> bool:
    """Cancel the task; whether that worked."""
    try:
        with _errors("does not cancel the task"):
            client.cancel(task)
    except (Away, PlacementError):
        return False
    return True


@contextlib.contextmanager
def _errors(failing: str) -> Iterator[None]:
    """Turn the errors of a request into PlacementError, with what to do; Away while the controller does not answer."""
    try:
        yield
    except ApiError as error:
        advice = "; `wooly login` stores a key that is good" if error.status == 401 else ""
        if error.kind == "no-placement":
            advice = "; WOOLY_QUEUE=1, or `wooly run --queue`, waits for a place"
        message = f"the controller {failing}: {error.detail}{advice}"
        problem = QuotaReachedError(message, **error.excess) if error.excess else PlacementError(message)
        if error.kind == "nodes-lost":
            raise _NodesLostError(message) from None
        raise (Away(problem) if error.status >= 500 else problem) from None
    except NoServerError as error:
        raise Away(PlacementError(f"{error} (CONTROLLER_URL)")) from None
    except ProtocolError as error:
        raise PlacementError(f"{error} (CONTROLLER_URL)") from None


_OPEN_S: Final = 4.0
_RESTART_S: Final = 5.0
"""A device that is being restarted is waited for as long, whatever the configuration says."""
_VERSION: Final = "0.1.0"

_encode: Final = msgspec.msgpack.Encoder().encode
_node_info: Final = msgspec.msgpack.Decoder(NodeInfo)
_opened: Final = msgspec.msgpack.Decoder(SessionOpened)


def _discover(bus: BusThread) -> NodeInfo:
    """The first node that answers. Raises Away when none does."""
    try:
        return _node_info.decode(bus.call(bus.request(subjects.discover(bus.principal), b"", 1.0), 2.0))
    except (NoAnswer, TimeoutError):
        raise Away(NoServerError("the bus answers, but no node is on it; start one with: wooly server")) from None
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a node's answer is unreadable ({error}); client and node are of different versions") from error


def _unique() -> str:
    """95 random bits, in letters and digits: commands take what begins with a hyphen for an option."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(16))


class Opening:
    """Opens the session of one device of a script on the node where the script's task is placed, and others in its place."""

    def __init__(self, bus: BusThread, config: Config, title: str, device: int, traceparent: str = "") -> None:
        """Find the place: the controller's choice with CONTROLLER_URL, else the first node that answers on the bus. ``traceparent``: of
        the trace that the session is in. Raises what ``open_session`` raises."""
        self._bus, self._config, self._title, self._device, self._traceparent = bus, config, title_of(title), device, traceparent
        self._place = place_for(config, self._title, device) if config.controller_url else _own_choice(bus, config, self._title)
        #: where the session was opened last
        self._opened = self._place
        #: the first session
        self._origin = ""
        #: the task waits for another place
        self._nowhere = False
        self._looking = threading.Lock()
        if not 0 <= device < len(self._place.gpus):
            raise ConfigError(f"device {device} does not exist: this task has {len(self._place.gpus)} (GPU_COUNT, GPUS)")

    def open(self) -> SessionOpened:
        """The node's answer. Raises what ``open_session`` raises."""
        return self._open_placed(None, _start_wait_s(self._config), lambda: None)

    def open_again(self, lost: Lost, check: Callable[[], None]) -> SessionOpened:
        """Open a session in the place of a lost one. ``check`` is called before each new try, and may raise. Raises what ``open`` does."""
        return self._open_placed(lost, self._config.recovery_wait_s, check)

    def _open_placed(self, lost: Lost | None, wait_s: float, check: Callable[[], None]) -> SessionOpened:
        """Open a session where the task is placed by now, under one name for each placement while its node may have it."""
        left = self._opened if lost is not None and lost.displaced else None
        names: dict[int, str] = {}

        def again() -> SessionOpened:
            if names or left is not None or self._nowhere:
                self._look(left)
            place = self._place
            try:
                opened = self._open(place, names.setdefault(place.position, self.new_name()), lost)
                self._opened, self._origin = place, self._origin or opened.session
                return opened
            except Away as away:
                if isinstance(away.error, SessionLostError):  # it has ended there, before its client heard of it
                    names[place.position] = self.new_name()
                raise

        return repeat(again, wait_s, check)

    def move(self) -> tuple[Place | None, bool]:
        """Where the task goes while it runs here, and whether its node is being stopped; None: it is not being moved, or the controller
        does not answer."""
        with contextlib.suppress(Away, PlacementError, TaskCancelledError):
            task = _get(_client(self._config), self._place.terms.task) if self._config.controller_url else None
            if task is not None and task.move is not None:
                place = _place(task, self._config.tenant, self._title)
                move = task.move
                return replace(place, node=move.node, gpus=tuple(move.gpus), position=move.position), move.urgent
        return None, False

    def is_known_at(self, place: Place) -> bool:
        """Whether the controller knows of a session where the task goes; False while it does not answer. Raises PlacementError when the
        task does not go there any more."""
        try:
            task = _get(_client(self._config), place.terms.task)
        except Away:
            return False
        if task.move is None or task.move.position != place.position:
            raise PlacementError(task.stayed or f"task {task.id} does not go there any more")
        return task.move.sessions > 0

    def open_ahead(self, place: Place, name: str, lost: Lost) -> SessionOpened:
        """Open a session where the task goes, beside the one that ``lost`` is. Raises what ``open`` does, Away."""
        return self._open(place, name, lost)

    def arrived(self, place: Place) -> None:
        """The session is the one that was opened ahead."""
        self._opened = self._place = place
        _moved(self._config, place)

    def stay(self, reason: str) -> None:
        """Have the controller know that the task stays where it is. Raises nothing."""
        with contextlib.suppress(Away, PlacementError), _errors("does not take back the move of the task"):
            _client(self._config).stay(self._place.terms.task, title_of(reason))

    def displaced(self) -> bool:
        """Whether the task is placed anew by now, or waits for a place because its node is lost: the controller is asked, and asked to
        place it again."""
        with contextlib.suppress(Away, PlacementError, TaskCancelledError):
            self._look(None)
        return self._nowhere or self._place.position != self._opened.position

    def withdraw(self, timeout_s: float) -> None:
        """The script ends without its session: its task, if it is its own and waits for a place, is cancelled. Takes no lock. Raises
        nothing."""
        if not self._config.controller_url or self._config.task_id:
            return
        client = _client(self._config, timeout_s)
        with contextlib.suppress(Away, PlacementError):
            if _get(client, self._place.terms.task).state == "queued":
                _withdraw(client, self._place.terms.task)

    def _look(self, left: Place | None) -> None:
        """Learn from the controller where the task is placed. Raises Away while that is nowhere, or still ``left``; PlacementError,
        TaskCancelledError. While the controller does not answer the place stays as it is."""
        if self._config.controller_url:
            with self._looking:  # an answer that comes late does not undo a later one
                self._learn(left)

    def _learn(self, left: Place | None) -> None:
        client = _client(self._config)
        try:
            task = _get(client, self._place.terms.task)
            if task.state == "failed":
                with contextlib.suppress(PlacementError), _errors("does not place the task again"):
                    task = client.place_again(task.id)
        except Away:
            if self._nowhere or left is not None:
                raise
            return
        live = task.state in ("queued", "started")
        if not live and not (self._nowhere or task.state == "cancelled"):
            return  # its node ended it; a new session there takes it up
        self._nowhere = live and (task.node is None or (left is not None and _decided(task) == left.position))
        if self._nowhere:
            raise Away(PlacementError(f"task {task.id} waits for a place on another node"))
        place = _place(task, self._config.tenant, self._title)
        if place.position != self._place.position:
            self._place = place
            _moved(self._config, place)

    def new_name(self) -> str:
        """Of a session."""
        return subjects.session_name(self._bus.principal, _unique())

    def _open(self, place: Place, name: str, lost: Lost | None) -> SessionOpened:
        request = OpenSession(
            session=name,
            gpus=(place.gpus[self._device],),
            dedup=self._config.weights_dedup,
            client_version=_VERSION,
            vram_wait_ms=self._config.vram_wait_ms,
            traceparent=self._traceparent,
            **msgspec.structs.asdict(place.terms),
        )
        if lost is not None:
            request = msgspec.structs.replace(
                request,
                replaces=lost.session,
                skips=lost.skips,
                repeats=lost.repeats,
                origin=self._origin or lost.session,
                shared=lost.shared,
                image=lost.image,
            )
        found = _open(self._bus, place.node, request)
        if found.node is None:
            raise ProtocolError("the node opened a session without identifying itself; client and node are of different versions")
        return msgspec.structs.replace(found, task=place.terms.task)


def _own_choice(bus: BusThread, config: Config, title: str) -> Place:
    """Without a controller: the first node that answers, with the terms of the configuration."""
    terms = TaskTerms(
        tenant=config.tenant,
        title=title,
        priority=config.priority,
        vram_bytes=config.vram_quota_bytes,
        exclusive=config.gpu_mode == "Exclusive",
        swap=config.swap_from_vram,
        weight=config.weight,
        sla_ms_p99=config.sla_ms_p99,
        pace_percent=config.pace_percent,
    )
    return Place(repeat(lambda: _discover(bus), _start_wait_s(config)).node, config.device_indices, terms)


def _start_wait_s(config: Config) -> float:
    """How long a node is waited for: it may be about to start, or its device is being restarted."""
    return max(_RESTART_S, config.start_wait_s)


def _open(bus: BusThread, node: str, request: OpenSession) -> SessionOpened:
    """Ask: the node recognises a repeated request. Raises its refusal; Away when it does not answer, or may accept it later."""
    try:
        asking = bus.request(subjects.node_request(node, "open", bus.principal), _encode(request), _OPEN_S)
        opened = _opened.decode(bus.call(asking, _OPEN_S + 1))
    except (NoAnswer, TimeoutError):
        raise Away(NoServerError(f"node {node} does not answer; is it running, and on this bus?")) from None
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the node's answer is unreadable ({error}); client and node are of different versions") from error
    if opened.fault is not None:
        excess = opened.fault.excess
        if excess is not None:
            refusal: WoolyError = quota_reached(opened.fault.message, excess)
        else:
            refusal = from_fault(opened.fault.name, opened.fault.message, opened.fault.places)
        raise refusal if opened.fault.fatal else Away(refusal)
    return opened
