"""Settings of a runner."""

from __future__ import annotations

import pytest

from services.kit.errors import SettingError
from services.runner.settings import Settings

GOOD = {"WOOLY_NATS_URL": "nats://127.0.0.1:4222", "CONTROLLER_URL": "http://127.0.0.1:8080", "RUNNER_NAME": "r"}


def test_defaults_and_lists() -> None:
    found = Settings.from_environment(GOOD)
    assert (found.name, found.slots, found.tenants) == ("r", 2, ())
    assert Settings.from_environment({**GOOD, "RUNNER_TENANTS": " b, a,,b "}).tenants == ("a", "b")


@pytest.mark.parametrize(
    "wrong", [{"WOOLY_NATS_URL": ""}, {"CONTROLLER_URL": ""}, {"RUNNER_NAME": "a.b"}, {"RUNNER_SLOTS": "0"}, {"RUNNER_SLOTS": "many"}]
)
def test_what_is_wrong_is_named(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Settings.from_environment({**GOOD, **wrong})
