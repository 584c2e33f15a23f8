"""The faults: what happens to a stack and a script that uses it. They sleep for as long as an outage lasts: that is what is tried."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError

from tests.chaos.bill import Verdict, as_undisturbed, at_least_undisturbed
from tests.chaos.stack import PARTS, STEPS, Script, Stack
from tests.support.node import until

__all__ = ["FAULTS", "Fault"]

MOVES = 6
"""To a second node and back, three times."""
MOVES_MANY = 50
_MANY_STEPS = 6_000
_LINES_A_MOVE = 5
_COPY_STEPS = 800
_MOVED_S = 120
_EXACT = as_undisturbed()


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` is called when the script has printed a random number of its lines, at most ``lines_max``; ``before`` before it starts,
    and what it returns once the script runs. ``bill`` says what is wrong with the bill, beside an undisturbed run's."""

    what: str
    strike: Callable[[Stack, Script, random.Random], None] | None = None
    before: Callable[[Stack], Callable[[], None]] | None = None
    nodes: int = 1
    #: the part that has a small disk of its own
    small: str = ""
    lines_max: int = 17
    bill: Verdict = _EXACT
    #: of the training
    steps: int = STEPS
    #: the only kind of work that it is for
    work: str = ""
    #: it strikes when the script has printed its last line
    last: bool = False
    #: the script has printed one line, and prints more as ``strike`` allows
    paced: bool = False


def _restart(*parts: str, after_s: float, number: int = signal.SIGKILL) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        for part in parts:
            stack.end(part, number)
        time.sleep(after_s)
        for part in PARTS:
            if part in parts:
                stack.start(part)

    return strike


def _still(part: str, seconds: float) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        pids = stack.executors() if part == "executor" else [script.process.pid] if part == "client" else []
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            if part == "nats":
                assert stack.nats.process is not None
                stack.nats.process.send_signal(number)
            elif part == "server":
                stack.signal(part, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)

    return strike


def _cut(times: int, seconds: float) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        for _ in range(times):
            stack.link.cut()
            time.sleep(seconds)
            stack.link.mend()
            time.sleep(0.3 if times > 1 else 0)

    return strike


def _no_data_port(seconds: float) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        """Its address is in the way of no one else: connections there are refused."""
        for path in stack.data_sockets():
            away = path.with_name("d0.away")
            path.rename(away)
            time.sleep(seconds)
            away.rename(path)

    return strike


def _cut_data(times: int) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        cut = 0
        for _ in range(times):
            cut += stack.cut_data_connections()
            time.sleep(chance.uniform(0.3, 1))
        assert cut, "the script had no connection to the data port"

    return strike


def _full_disk(part: str) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        """A part that ends by it is started again, as its supervisor does."""
        stack.fill(6)
        if part == "nats":
            until(lambda: stack.nats.outdated, "the bus says that its disk was full", 60)
        if part == "nats" or not stack.runs(part):
            stack.end(part)
            stack.start(part)

    return strike


def _six_kills(stack: Stack, script: Script, chance: random.Random) -> None:
    for _ in range(6):
        _restart(chance.choice(["server", "nats", "controller", "billing"]), after_s=0)(stack, script, chance)
        time.sleep(1.5)


def _four_kills(part: str) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        for _ in range(4):
            _restart(part, after_s=0)(stack, script, chance)
            time.sleep(2)

    return strike


def _end(*parts: str) -> Callable[[Stack, Script, random.Random], None]:
    """They are started again once the script is over."""

    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        for part in parts:
            stack.end(part, signal.SIGKILL)

    return strike


def _drain(stack: Stack, script: Script, chance: random.Random) -> None:
    """Until the script is over."""
    (node,) = stack.ask("controller", "/api/v1/nodes")["items"]
    stack.ask("controller", f"/api/v1/nodes/{node['id']}/drain", {})
    script.process.wait()
    stack.ask("controller", f"/api/v1/nodes/{node['id']}/resume", {})


def _run_again(stack: Stack, script: Script, chance: random.Random) -> None:
    script.process.kill()
    script.process.wait()
    script.run_again()


def _late(part: str) -> Callable[[Stack], Callable[[], None]]:
    def before(stack: Stack) -> Callable[[], None]:
        stack.end(part, signal.SIGKILL)

        def after() -> None:
            time.sleep(12)
            stack.start(part)

        return after

    return before


def _kill_executor(stack: Stack, script: Script, chance: random.Random) -> None:
    stack.kill_executor()


def _kill_node(stack: Stack, script: Script, chance: random.Random) -> None:
    stack.end("server", signal.SIGKILL)
    stack.kill_executor()
    stack.start("server")


def _task(stack: Stack) -> Any:
    """The script's, as the controller shows it."""
    (task,) = stack.ask("controller", "/api/v1/tasks")["items"]
    return task


def _home(stack: Stack) -> str:
    """The node that runs the script."""
    name = _task(stack)["node_name"]
    (part,) = (part for part, known in stack.nodes.items() if known == name)
    return part


def _lose_node(stack: Stack, script: Script, chance: random.Random) -> None:
    """It is not started again."""
    home = _home(stack)
    stack.end(home, signal.SIGKILL)
    stack.kill_executor(home)


def _hold_node(seconds: float) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        home = _home(stack)
        stack.signal(home, signal.SIGSTOP)
        time.sleep(seconds)  # the fault lasts as long
        stack.signal(home, signal.SIGCONT)

    return strike


def _cut_node(seconds: float) -> Callable[[Stack, Script, random.Random], None]:
    def strike(stack: Stack, script: Script, chance: random.Random) -> None:
        link = stack.links[_home(stack)]
        link.cut()
        time.sleep(seconds)  # the fault lasts as long
        link.mend()

    return strike


def _move(stack: Stack, script: Script, chance: random.Random) -> None:
    """To the other node and back, each time while it computes; it passes the place of the next move only when it is there."""
    lines = sorted(chance.sample(range(2, 18), MOVES))
    for at, following in itertools.pairwise([*lines, lines[-1] + 2]):
        script.allow(following)
        if not (script.reaches(at, _MOVED_S) and _moved(stack, script)):
            return  # it has ended, or hangs: the verdict says so


def _move_again_and_again(stack: Stack, script: Script, chance: random.Random) -> None:
    """To the other node and back, as often as that is possible."""
    for move in range(1, MOVES_MANY + 1):
        script.allow(_LINES_A_MOVE * move)
        if not _moved(stack, script):
            return


def _moved(stack: Stack, script: Script) -> bool:
    task = _task(stack)
    (to,) = (name for name in stack.nodes.values() if name != task["node_name"])
    try:
        stack.ask("controller", f"/api/v1/tasks/{task['id']}/move", {"to": to})
    except HTTPError:
        return False  # the verdict counts the moves
    _wait_until_there(stack, script, to)
    return script.process.poll() is None


def _wait_until_there(stack: Stack, script: Script, node: str) -> None:
    """Until the task runs on this node, or the script has ended."""

    def there() -> bool:
        task = _task(stack)
        return script.process.poll() is not None or (task["state"], task["node_name"], task["move"]) == ("started", node, None)

    until(there, "the task runs on the other node", _MOVED_S)


FAULTS = (
    Fault("no fault: the control"),
    Fault("kill -9 the server, started again after 0.5 s", _restart("server", after_s=0.5)),
    Fault("kill -9 the server, started again after 9 s", _restart("server", after_s=9)),
    Fault("kill -9 the server, started again after 15 s", _restart("server", after_s=15)),
    Fault("SIGTERM the server, start it again (a rolling restart)", _restart("server", after_s=0, number=signal.SIGTERM)),
    Fault("kill -9 the server four times, 2 s apart", _four_kills("server")),
    Fault("SIGSTOP server for 5 s", _still("server", 5)),
    Fault("SIGSTOP server for 15 s", _still("server", 15)),
    Fault("kill -9 nats-server, started again after 0.5 s", _restart("nats", after_s=0.5)),
    Fault("kill -9 nats-server, started again after 12 s", _restart("nats", after_s=12)),
    Fault("kill -9 nats-server four times, 2 s apart", _four_kills("nats")),
    Fault("SIGSTOP nats for 5 s", _still("nats", 5)),
    Fault("kill -9 the controller, started again after 0.5 s", _restart("controller", after_s=0.5)),
    Fault("kill -9 billing, started again after 0.5 s", _restart("billing", after_s=0.5)),
    Fault("kill -9 controller and billing, started again when the script is over", _end("controller", "billing")),
    Fault("kill -9 nats, controller and billing, all started again", _restart("controller", "billing", "nats", after_s=0)),
    Fault("six kills of a random part, 1.5 s apart", _six_kills),
    Fault("the client's connection to the bus is cut once", _cut(1, 0)),
    Fault("the client's connection to the bus is cut 15 times within 5 s", _cut(15, 0)),
    Fault("the client cannot reach the bus for 5 s", _cut(1, 5)),
    Fault("the client cannot reach the bus for 15 s", _cut(1, 15)),
    Fault("the node cannot reach the bus for 5 s", _cut_node(5)),
    Fault("SIGSTOP the client for 20 s", _still("client", 20)),
    Fault("SIGSTOP the client for 45 s (a laptop that slept)", _still("client", 45)),
    Fault("kill -9 the client; the script is run again from its beginning", _run_again, bill=at_least_undisturbed),
    Fault("SIGSTOP the executor for 60 s (a device that hangs)", _still("executor", 60)),
    Fault("SIGSTOP the executor for 12 s", _still("executor", 12)),
    Fault("the data port cannot be reached for 3 s", _no_data_port(3)),
    Fault("the data port's connections are cut ten times, 0.3 to 1 s apart", _cut_data(10)),
    Fault("the data port's connections are cut in the middle of uploads and downloads", _cut_data(10), steps=_COPY_STEPS, work="copy"),
    Fault("the node is drained while the script runs, and resumed when it is over", _drain),
    Fault("the script starts while nats is away for 12 s", before=_late("nats")),
    Fault("the script starts while controller is away for 12 s", before=_late("controller")),
    Fault("the script starts while server is away for 12 s", before=_late("server")),
    *(Fault(f"the disk of {part} is full for 6 s", _full_disk(part), small=part) for part in ("nats", "server", "controller", "billing")),
    Fault("kill -9 the executor; its server starts another", _kill_executor),
    Fault("kill -9 server and executor together", _kill_node),
    Fault("kill -9 the executor when the script has printed its last line", _kill_executor, last=True),
    Fault("kill -9 nats-server when the script has printed its last line", _restart("nats", after_s=0), last=True),
    Fault("kill -9 the server when the script has printed its last line", _restart("server", after_s=0), last=True),
    *(
        Fault(f"{what}, beside a second node", strike, nodes=2, bill=as_undisturbed(displaced=1))
        for what, strike in (
            ("kill -9 server and executor for good", _lose_node),
            ("SIGSTOP server for 40 s", _hold_node(40)),
            ("the node cannot reach the bus for 40 s", _cut_node(40)),
        )
    ),
    Fault("the task is moved to a second node and back, three times", _move, nodes=2, lines_max=1, bill=as_undisturbed(displaced=MOVES),
          steps=2 * STEPS, paced=True),
    Fault("the task is moved to a second node and back, 25 times", _move_again_and_again, nodes=2, lines_max=1,
          bill=as_undisturbed(displaced=MOVES_MANY), steps=_MANY_STEPS, paced=True),
)  # fmt: skip
