"""Names that people write: ids, titles, beginnings of ids, and what means nothing or too much."""

from __future__ import annotations

import pytest

from bus_schemas.events import DeviceFact, Event, NodeLost, NodeRegistered, TaskStateChanged, TaskSubmitted
from scheduler.placement import ClusterView
from services.controller.errors import Ambiguous, NotThere
from services.controller.lookup import find_node, find_task

GIB = 1 << 30


def view_of(*events: Event) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate(events, 1):
        view.apply(position, event)
    return view


def submitted(task: str, title: str = "", tenant: str = "acme") -> TaskSubmitted:
    return TaskSubmitted(1, task, tenant, 0, GIB, queue=True, title=title)


def registered(node: str, name: str) -> NodeRegistered:
    return NodeRegistered(1, node, name, "", 1, (DeviceFact(0, "cpu", "host", 2, GIB),), (), "1")


def everything(tenant: str) -> bool:
    return True


def acme(tenant: str) -> bool:
    return tenant == "acme"


def test_a_task_goes_by_id_title_and_beginning() -> None:
    view = view_of(submitted("abcd01", "train.py"), submitted("abcd02", "serve.py"), submitted("ffff03", "abcd01"))
    for asked, found in (("abcd01", "abcd01"), ("train.py", "abcd01"), ("ffff", "ffff03"), ("abcd02", "abcd02")):
        assert find_task(view, asked, everything) == found
    with pytest.raises(Ambiguous, match="2 tasks, give an id: abcd02, abcd01"):
        find_task(view, "abcd", everything)
    for nothing in ("", "fff", "train", "TRAIN.PY", "abcd011"):
        with pytest.raises(NotThere):
            find_task(view, nothing, everything)


def test_of_several_with_one_title_the_one_that_is_not_over_is_meant() -> None:
    old, new = submitted("aaaa1", "train.py"), submitted("bbbb2", "train.py")
    over = TaskStateChanged(2, "aaaa1", "cancelled", "")
    assert find_task(view_of(old, new, over), "train.py", everything) == "bbbb2"
    for view in (view_of(old, new), view_of(old, new, over, TaskStateChanged(3, "bbbb2", "cancelled", ""))):
        with pytest.raises(Ambiguous, match="bbbb2, aaaa1"):
            find_task(view, "train.py", everything)


def test_another_tenants_task_has_no_name_at_all() -> None:
    view = view_of(submitted("aaaa1", "train.py", "zebra"), submitted("bbbb2", "train.py"))
    assert find_task(view, "train.py", acme) == "bbbb2"
    for asked in ("aaaa1", "aaaa", "nothing"):
        with pytest.raises(NotThere, match=f"^there is no task {asked}$"):
            find_task(view, asked, acme)


def test_a_node_goes_by_id_name_and_beginning() -> None:
    first, second = registered("1111-a", "local"), registered("2222-b", "atlas")
    view = view_of(first, second)
    for asked, found in (("1111-a", "1111-a"), ("local", "1111-a"), ("2222", "2222-b")):
        assert find_node(view, asked) == found
    for nothing in ("loc", "222", "borealis"):
        with pytest.raises(NotThere, match="there is no node"):
            find_node(view, nothing)


def test_a_node_that_came_again_under_another_id_is_the_one_that_is_not_lost() -> None:
    old, new = registered("1111-a", "local"), registered("2222-b", "local")
    with pytest.raises(Ambiguous, match="2 nodes"):
        find_node(view_of(old, new), "local")
    assert find_node(view_of(old, new, NodeLost(2, "1111-a", 1, "silent")), "local") == "2222-b"
