"""One executor for each trust domain: tenants of different domains never share a process, nor files that one of them wrote."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bus_schemas import faults
from bus_schemas.session import CloseSession, OpenSession, SessionClosed, SessionOpened
from services.server.settings import EXECUTOR_VARIABLE, Settings
from tests.support.node import Node, executor_pids, increment, until
from tests.support.plane import Controller
from wooly.session import Session


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, WOOLY_EXECUTOR_PER_DOMAIN="1", WOOLY_DEDUP_TRUST="a,b")


_times: Counter[str] = Counter()
"""How many sessions of a tenant there were: a name is used once."""


def opened(node: Node, tenant: str) -> SessionOpened:
    """Once the node has a process for the tenant, or refuses it for good."""

    def asked() -> SessionOpened | None:
        found = node.ask("open", OpenSession(f"of-{tenant}-{_times[tenant]}", tenant, "", 3, (0,), 0), SessionOpened)
        again = found.fault is not None and found.fault.name == faults.NODE_FAULT
        return None if again else found

    found = until(asked, f"an answer to {tenant}")
    assert found is not None
    return found


def process(node: Node) -> tuple[int, str, str]:
    """Of the executor: its id, and the folders that it writes to."""
    (pid,) = until(lambda: executor_pids(node.folder), "the executor")
    variables = dict(part.split(b"=", 1) for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in part)
    settings = json.loads(variables[EXECUTOR_VARIABLE.encode()])
    assert not settings["model_cache_dir"]
    return pid, settings["cache_dir"], settings["memory"]["swap_dir"]


def close(node: Node, tenant: str) -> None:
    assert node.ask("close", CloseSession(f"of-{tenant}-{_times[tenant]}", "done", -1), SessionClosed).session
    _times[tenant] += 1


def test_domains_take_turns_and_each_has_a_process_of_its_own(node: Node) -> None:
    with node:
        assert opened(node, "a").fault is None
        first = process(node)
        assert opened(node, "b").fault is None and process(node) == first, "a and b trust each other"
        refused = opened(node, "c").fault
        assert refused is not None and refused.name == faults.DEVICE_TAKEN and not refused.fatal
        assert "another trust domain" in refused.message
        close(node, "a")
        assert (waits := opened(node, "c").fault) is not None and waits.name == faults.DEVICE_TAKEN, "b is still there"
        close(node, "b")
        assert opened(node, "c").fault is None
        second = process(node)
        assert not {*first} & {*second} and not os.path.exists(f"/proc/{first[0]}/maps")
        close(node, "c")
        assert opened(node, "a").fault is None
        third = process(node)
        assert third[1:] == first[1:] and third[0] not in (first[0], second[0]), "its own files again, in a new process"
        close(node, "a")


def test_a_free_device_is_the_domains_that_has_waited_longest(node: Node) -> None:
    """The one that had it asks again at once, and waits: c has asked meanwhile."""
    with node:
        assert opened(node, "a").fault is None
        assert (refused := opened(node, "c").fault) is not None and refused.name == faults.DEVICE_TAKEN
        close(node, "a")
        assert (refused := opened(node, "a").fault) is not None and refused.name == faults.DEVICE_TAKEN and not refused.fatal
        assert opened(node, "c").fault is None
        close(node, "c")


def test_a_session_of_another_domain_gives_no_way(node: Node) -> None:
    """A client may name any session as the one whose place it takes; only its own is left out of account."""
    with node:
        held = opened(node, "a")
        assert held.fault is None
        first = process(node)
        asked = OpenSession("of-c-instead", "c", "", 3, (0,), 0, exclusive=True, replaces=held.session)
        refused = node.ask("open", asked, SessionOpened).fault
        assert refused is not None and refused.name == faults.DEVICE_TAKEN
        assert process(node) == first
        close(node, "a")


def test_a_process_that_is_lost_is_replaced_by_one_of_the_same_domain(node: Node) -> None:
    """Its sessions may be opened again; until they are, or their lease is over, the device is theirs."""
    with node:
        assert opened(node, "a").fault is None
        first = process(node)
        os.kill(first[0], signal.SIGKILL)
        until(lambda: executor_pids(node.folder) not in ([], [first[0]]), "another executor")
        assert process(node)[1:] == first[1:]
        refused = opened(node, "c").fault
        assert refused is not None and refused.name == faults.DEVICE_TAKEN


def test_a_client_finds_the_process_of_its_domain(node: Node) -> None:
    """It tries again while that is started."""
    with node:
        assert opened(node, "a").fault is None
        close(node, "a")
        session, program = node.open(), increment()
        (found,) = session.wait(session.submit(program.flush([1], allocs=[(1, 128)], reads=[(1, 0, 128)])))
        assert np.frombuffer(found).tolist() == [1.0] * 16
        session.close()


def test_a_task_of_another_domain_waits_for_its_place_as_for_memory(node: Node) -> None:
    """The controller knows the domains of the node, and places it once no session of others is there."""
    with node:
        controller = Controller(node.nats.url, node.folder)
        controller.start()
        until(lambda: controller.get("/api/v1/nodes")["items"], "the node has joined")

        def of(tenant: str) -> Session:
            return node.open(controller_url=controller.url, tenant=tenant, required_vram_mb=64, queue=True)

        def task_of(tenant: str) -> Any:
            return next((task for task in controller.get("/api/v1/tasks")["items"] if task["tenant"] == tenant), None)

        first, program = [of("a"), of("b")], increment()
        with ThreadPoolExecutor(1) as beside:
            coming = beside.submit(of, "c")
            task = until(lambda: task_of("c"), "its task is submitted")
            waiting = controller.get(f"/api/v1/tasks/{task['id']}/waiting")
            first[0].close()
            still = task_of("c")
            first[1].close()
            session = coming.result()
        assert "1 device in use by another trust domain" in waiting["sentence"], waiting
        assert (still["state"], still["node"]) == ("queued", None)
        (found,) = session.wait(session.submit(program.flush([1], allocs=[(1, 128)], reads=[(1, 0, 128)])))
        assert np.frombuffer(found).tolist() == [1.0] * 16
        session.close()
        assert controller.stop() == 0


def test_without_the_option_all_share_the_folders(tmp_path: Path) -> None:
    settings = Settings.from_environment({"WOOLY_DATA_DIR": str(tmp_path), "WOOLY_SANDBOX": "0"})
    one, other = settings.executor(0, tmp_path), settings.executor(0, tmp_path, "tenant a")
    assert one.cache_dir != other.cache_dir and one.memory.swap_dir != other.memory.swap_dir
    assert one.model_cache_dir and not settings.executor_per_domain
