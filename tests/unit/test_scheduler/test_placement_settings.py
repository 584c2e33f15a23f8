"""Settings of placement: names, limits, defaults and which of several values holds; and the words for refusals."""

from __future__ import annotations

import pytest

from bus_schemas.events import ConfigChanged, DeviceFact, NodeRegistered, TaskDisplaced, TaskSubmitted
from scheduler.placement import capacity, decide
from scheduler.placement.columns import BYTES_MAX
from scheduler.placement.feasible import beyond_every_device
from scheduler.placement.reasons import REASONS, reason_text
from scheduler.placement.state import default_priority, default_vram_bytes
from scheduler.placement.states import DEFAULT_VRAM_MB, DEFAULTS, GLOBAL_LIMITS, NODE_LIMITS
from scheduler.vram import schedulable_bytes
from tests.unit.test_scheduler.clusters import GIB, Cluster, node, session, task

MIB = 1 << 20
WEEK_MS = 7 * 24 * 3600 * 1000


def test_global_settings_have_these_names_and_limits() -> None:
    """The VRAM of a task that names none is at most what a device can be taken to have."""
    assert GLOBAL_LIMITS == {
        "default_vram_overcommit_percent": 1000,
        "queue_age_ms": WEEK_MS,
        "queue_protect_ms": WEEK_MS,
        "queue_reservations_max": 10_000,
        "default_vram_mb": BYTES_MAX // MIB,
        "pack": 1,
        "defragment_after_ms": WEEK_MS,
    }
    assert NODE_LIMITS == {"overcommit_vram_percent": 1000, "drained": 1}


def test_each_default_is_within_its_limit() -> None:
    assert DEFAULTS == {
        "default_vram_overcommit_percent": 0,
        "queue_age_ms": 600_000,
        "queue_protect_ms": 300_000,
        "queue_reservations_max": 32,
        "default_vram_mb": 4096,
        "pack": 0,
        "defragment_after_ms": 0,
    }
    assert all(0 <= DEFAULTS[key] <= most for key, most in GLOBAL_LIMITS.items())


@pytest.mark.parametrize(
    ("values", "holds"),
    [({}, 32), ({"environment": 7}, 7), ({"global": 5}, 5), ({"environment": 7, "global": 0}, 0), ({"global": -3}, 0), ({"a": 9}, 32)],
)
def test_a_stored_value_goes_before_that_of_the_environment_and_both_before_the_default(values: dict[str, int], holds: int) -> None:
    cluster = Cluster(node("a", 1), *[ConfigChanged(1, scope, "queue_reservations_max", value) for scope, value in values.items()])
    assert cluster.view.setting("queue_reservations_max") == holds


@pytest.mark.parametrize(
    ("values", "percent"),
    [
        ({}, 0),
        ({("environment", "default_vram_overcommit_percent"): 40}, 40),
        ({("environment", "default_vram_overcommit_percent"): 40, ("global", "default_vram_overcommit_percent"): 30}, 30),
        ({("global", "default_vram_overcommit_percent"): 30, ("a", "overcommit_vram_percent"): 0}, 0),
        ({("a", "overcommit_vram_percent"): 1001}, 1000),
        ({("a", "overcommit_vram_percent"): -1}, 0),
        ({("b", "overcommit_vram_percent"): 70}, 0),
    ],
)
def test_an_overcommit_of_the_node_goes_before_that_of_the_cluster(values: dict[tuple[str, str], int], percent: int) -> None:
    """Whatever the order in which they are set, and until they are unset again."""
    facts = [ConfigChanged(1, scope, key, value) for (scope, key), value in values.items()]
    for ordered in (facts, facts[::-1]):
        cluster = Cluster(node("a", 10), *ordered)
        assert cluster.view.overcommit_percent("a") == percent
        assert (
            capacity(cluster.view, "a", cluster.view.nodes["a"].registered.devices[0]).schedulable_bytes
            == 10 * GIB * (100 + percent) // 100
        )
        for scope, key in values:
            cluster.add(ConfigChanged(2, scope, key, None))
        assert capacity(cluster.view, "a", cluster.view.nodes["a"].registered.devices[0]).schedulable_bytes == 10 * GIB


def test_a_node_that_joins_later_has_the_settings_made_before() -> None:
    cluster = Cluster(ConfigChanged(1, "a", "drained", 1), ConfigChanged(1, "global", "default_vram_overcommit_percent", 50), node("a", 10))
    assert cluster.view.drained("a")
    assert [refusal[2] for refusal in decide(cluster.view, task("t"), 0).refusals] == ["node_drained"]
    assert capacity(cluster.view, "a", cluster.view.nodes["a"].registered.devices[0]).schedulable_bytes == 15 * GIB
    assert capacity(cluster.view, "a", cluster.view.nodes["a"].registered.devices[0]).physical_bytes == 10 * GIB


def test_what_may_be_promised_on_the_largest_devices_is_exact() -> None:
    devices = (DeviceFact(0, "gpu", "host", 8, BYTES_MAX - 1),)
    cluster = Cluster(NodeRegistered(1, "a", "a", "", 1, devices), ConfigChanged(1, "a", "overcommit_vram_percent", 999))
    found = capacity(cluster.view, "a", devices[0])
    assert found.schedulable_bytes == schedulable_bytes(BYTES_MAX - 1, 999) == (BYTES_MAX - 1) * 1099 // 100


def test_a_task_that_asks_for_more_than_there_can_be_fits_no_device() -> None:
    """Also more than fits the numbers by which devices are compared."""
    devices = (DeviceFact(0, "gpu", "host", 8, BYTES_MAX // 2),)
    view = Cluster(NodeRegistered(1, "a", "a", "", 1, devices)).view
    for nbytes, fits in ((BYTES_MAX // 2, True), (BYTES_MAX // 2 + 1, False), (BYTES_MAX, False), (2**62, False)):
        assert bool(decide(view, TaskSubmitted(1, "t", "acme", 0, nbytes), 0).gpus) == fits


# -- what a task gets that does not ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes_mib", "stored_mb", "tier_mb", "expected_mib"),
    [
        ([], None, 0, 4096),
        ([80 * 1024], None, 0, 4096),
        ([8 * 1024, 16 * 1024, 2 * 1024], None, 0, 4096),
        ([8 * 1024, 12 * 1024, 2 * 1024], None, 0, 3072),
        ([1023], None, 0, 255),
        ([3], None, 0, 4096),
        ([0], None, 0, 4096),
        ([80 * 1024], 512, 0, 512),
        ([80 * 1024], 512, 600, 600),
        ([80 * 1024], 0, 0, 0),
        ([2 * 1024], 0, 600, 512),
    ],
)
def test_a_task_that_names_no_memory_is_placed_by_the_default_and_a_quarter_of_the_largest_device_at_most(
    sizes_mib: list[int], stored_mb: int | None, tier_mb: int, expected_mib: int
) -> None:
    """The tier's default goes before the cluster's. The quarter is in whole MiB; a device with less than one is not looked at."""
    cluster = Cluster()
    if sizes_mib:
        devices = tuple(DeviceFact(index, "gpu", "host", 8, size * MIB) for index, size in enumerate(sizes_mib))
        cluster.add(NodeRegistered(1, "a", "a", "", 1, devices))
    if stored_mb is not None:
        cluster.add(ConfigChanged(1, "global", DEFAULT_VRAM_MB, stored_mb))
    assert default_vram_bytes(cluster.view, tier_mb) == expected_mib * MIB


@pytest.mark.parametrize(
    ("ceiling", "latency_target", "priority"), [(0, False, 2), (1, False, 2), (2, False, 3), (4, False, 4), (3, True, 0)]
)
def test_a_task_that_names_no_priority_gets_the_middle_of_what_its_tier_allows(ceiling: int, latency_target: bool, priority: int) -> None:
    assert default_priority(ceiling, latency_target=latency_target) == priority


# -- words -------------------------------------------------------------------------------------------------------------------------------


TEXTS = {
    "no_nodes": ("no node has joined", "no node has joined"),
    "unknown_group": ("the task's groups are unknown", "the task's groups are unknown"),
    "group_empty": ("no node is in the task's groups", "no node is in the task's groups"),
    "node_lost": ("1 node lost", "3 nodes lost"),
    "node_drained": ("1 node drained", "3 nodes drained"),
    "node_left": ("1 node that the task is moved away from", "3 nodes that the task is moved away from"),
    "not_in_group": ("1 node outside of the task's groups", "3 nodes outside of the task's groups"),
    "group_only": ("1 node for tasks of another group", "3 nodes for tasks of another group"),
    "no_device": ("1 node without a device", "3 nodes without a device"),
    "gpu_count": (
        "1 device on nodes that have too few free devices for the task",
        "3 devices on nodes that have too few free devices for the task",
    ),
    "vram_short": ("1 device with too little free VRAM", "3 devices with too little free VRAM"),
    "vram_physical_short": ("1 device with too little free physical VRAM", "3 devices with too little free physical VRAM"),
    "exclusive_conflict": ("1 device in use, while the task wants one for itself", "3 devices in use, while the task wants one for itself"),
    "device_exclusive": ("1 device held exclusively by another task", "3 devices held exclusively by another task"),
    "other_domain": ("1 device in use by another trust domain", "3 devices in use by another trust domain"),
    "gang_incomplete": ("other tasks of its gang are not submitted yet",) * 2,
    "gang_short": ("there is no room for its whole gang",) * 2,
    "reserved": ("1 device kept for a task that has waited longer", "3 devices kept for a task that has waited longer"),
}


def test_every_reason_has_words() -> None:
    assert {reason: (reason_text(reason, 1), reason_text(reason, 3)) for reason in REASONS} == TEXTS
    assert reason_text("a_later_reason", 2) == "2 devices refused (a_later_reason)"


def test_what_no_device_could_hold_is_said_with_the_largest() -> None:
    cluster = Cluster(node("a", 10), node("b", 20), ConfigChanged(1, "a", "overcommit_vram_percent", 200))
    assert beyond_every_device(cluster.view, task("t", 30)) == ""
    assert beyond_every_device(cluster.view, task("t", 31)) == (
        "31744 MiB are more than any device could ever give: the largest has 30720 MiB that may be promised"
    )
    assert beyond_every_device(cluster.view, task("t", 20, noswap=True)) == ""
    assert beyond_every_device(cluster.view, task("t", 21, noswap=True)) == (
        "21504 MiB are more than any device could ever give: the largest has 20480 MiB of physical memory, "
        "and a task that cannot be swapped out needs that"
    )
    assert beyond_every_device(Cluster().view, task("t", 31)) == ""


def test_what_is_on_a_device_is_listed_by_id() -> None:
    cluster = Cluster(node("a", 10, 10), task("t2", 1), task("t1", 1), task("t3", 1))
    view = cluster.view
    gpus = {name: view.tasks[name].placed.gpus for name in view.tasks}  # type: ignore[union-attr]  # each has its place
    for gpu in (0, 1):
        assert [seen.submitted.task for seen in view.tasks_on("a", gpu)] == sorted(name for name in gpus if gpus[name] == (gpu,))
    for name in ("s2", "s1"):
        cluster.add(session(name, "", "a"))
    assert [fact.session for fact in view.sessions_on("a", 0)] == ["s1", "s2"]
    assert view.sessions_on("a", 1) == []
    assert [seen.submitted.task for seen in view.live_tasks()] == ["t1", "t2", "t3"]


def test_a_task_that_moves_is_listed_on_the_devices_that_it_leaves_and_goes_to() -> None:
    cluster = Cluster(node("a", 1, 2), task("t", 2), node("b", 2, 2), session("s", "t", "a"), TaskDisplaced(1, "t", "a", False, "b", (0,)))
    listed = {(name, gpu): [seen.submitted.task for seen in cluster.view.tasks_on(name, gpu)] for name in "ab" for gpu in (0, 1)}
    assert listed == {("a", 0): [], ("a", 1): ["t"], ("b", 0): ["t"], ("b", 1): []}
