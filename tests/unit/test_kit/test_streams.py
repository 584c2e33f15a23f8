"""On how many servers a stream is stored, and what a folder of bus servers may be started as."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.controller.metrics import log_copies
from services.kit.errors import SettingError, StartError
from services.kit.nats_server import NatsCluster
from services.kit.streams import (
    batch_stream_config,
    events_stream_config,
    journal_stream_config,
    leaf_domain,
    replicas,
    replicated,
    run_logs_stream_config,
)


def test_a_server_alone_stores_everything_as_it_is_configured() -> None:
    for config in (events_stream_config(), run_logs_stream_config(), batch_stream_config("n1"), journal_stream_config()):
        assert replicated(config, 1) == config


def test_what_may_not_be_lost_is_on_three_servers_and_batches_wait_for_no_election() -> None:
    assert replicated(events_stream_config(), 3) == events_stream_config() | {"num_replicas": 3}
    logs = replicated(run_logs_stream_config(), 3)
    assert logs["num_replicas"] == 3 and "persist_mode" not in logs, "a server refuses asynchronous writes of a replicated stream"
    for config in (batch_stream_config("n1"), journal_stream_config()):
        assert replicated(config, 3) == config


@pytest.mark.parametrize("text", ["2", "0", "three", "-1"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"must be 1 .* or 3"):
        replicas({"WOOLY_BUS_REPLICAS": text})
    assert (replicas({}), replicas({"WOOLY_BUS_REPLICAS": ""}), replicas({"WOOLY_BUS_REPLICAS": "3"})) == (1, 1, 3)


@pytest.mark.parametrize("text", ["hub", "a.b", "*", "a b"])
def test_a_leaf_server_has_a_domain_of_its_own(text: str) -> None:
    with pytest.raises(SettingError, match="WOOLY_BUS_LEAF"):
        leaf_domain({"WOOLY_BUS_LEAF": text})
    assert (leaf_domain({}), leaf_domain({"WOOLY_BUS_LEAF": "node-1"})) == ("", "node-1")


def test_a_folder_is_started_with_as_many_servers_as_its_state_is_of(tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    (one / "store").mkdir(parents=True)
    for number in "123":
        (three / number / "store").mkdir(parents=True)
    assert len(NatsCluster(one, 1).servers) == 1 and len(NatsCluster(three, 3).servers) == 3
    for folder, size in ((one, 3), (three, 1)):
        with pytest.raises(StartError, match="holds the state of"):
            NatsCluster(folder, size)


def test_a_server_that_is_away_or_behind_holds_no_copy() -> None:
    alone = {"config": {"num_replicas": 1}}
    assert log_copies(alone, 1) == (1, 1) and log_copies(alone, 3) == (1, 3)
    followers = [{"current": True}, {"current": True, "offline": True}, {"current": False}]
    three = {"config": {"num_replicas": 3}, "cluster": {"leader": "a", "replicas": followers[:2]}}
    assert log_copies(three, 1) == (2, 3)
    assert log_copies({**three, "cluster": {"replicas": [followers[0], followers[2]]}}, 3) == (2, 3)
    assert log_copies({**three, "cluster": {"replicas": [followers[0], followers[0]]}}, 3) == (3, 3)
