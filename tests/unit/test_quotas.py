"""The table of quotas beside the code: every row is enforced where it says, by the limits that it says, and refusals are sentences."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bus_schemas.events import TierSet
from bus_schemas.quotas import QUOTAS, Excess, Quota
from services.kit.errors import REFUSED, QuotaReached, reached
from wooly import progress
from wooly.shared.variables import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
TIER_FIELDS = {field.name for field in msgspec.structs.fields(TierSet)}


@pytest.mark.parametrize("quota", QUOTAS.values(), ids=lambda quota: quota.name)
def test_a_row_names_the_module_that_enforces_it_and_what_sets_it(quota: Quota) -> None:
    for module in quota.enforced.split(", "):
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert (f'"{quota.name}"' if quota.limit else quota.name) in source, f"{module} does not know {quota.name}"
    if quota.set_by.startswith("tier: "):
        assert quota.set_by.removeprefix("tier: ") in TIER_FIELDS
    elif quota.set_by:
        assert "node" in BY_NAME[quota.set_by].readers or "controller" in BY_NAME[quota.set_by].readers
    assert bool(quota.limit) is (quota.unit != "right") and quota.limit >= quota.regained


def test_the_defaults_are_those_of_the_variables() -> None:
    assert QUOTAS["sessions"].limit == QUOTAS["opens"].limit == int(BY_NAME["WOOLY_TENANT_SESSIONS_MAX"].default)
    assert QUOTAS["key_opens"].limit == QUOTAS["opens"].limit // 2
    assert QUOTAS["messages"].regained == int(BY_NAME["WOOLY_TENANT_MESSAGES_A_SECOND"].default)
    assert QUOTAS["connections"].limit == int(BY_NAME["WOOLY_KEY_CONNECTIONS_MAX"].default)
    assert QUOTAS["stored_bytes"].limit == int(BY_NAME["WOOLY_MODEL_CACHE_MB"].default) << 20 >> 1


def test_a_refusal_over_rest_has_all_members_and_is_counted() -> None:
    before = REFUSED["runs"]
    assert reached("runs", 199, "tenant lab") is None
    refusal = reached("runs", 200, "tenant lab", field="id")
    assert isinstance(refusal, QuotaReached) and (refusal.status, refusal.kind, refusal.field) == (429, "quota-reached", "id")
    assert refusal.members == {"quota": "runs", "limit": 200, "used": 200, "retry_after_ms": 5_000}
    assert refusal.headers == {"Retry-After": "5"} and REFUSED["runs"] == before + 1
    assert QuotaReached(Excess("opens", 4, 4, 1), "tenant lab").headers == {"Retry-After": "1"}, "rounded up"


@pytest.mark.parametrize("quota", [quota for quota in QUOTAS.values() if quota.remedy], ids=lambda quota: quota.name)
def test_a_refusal_is_a_sentence(quota: Quota) -> None:
    text = Excess(quota.name, 8, 9, 1_500).sentence("tenant lab")
    rate = rf", {quota.regained} more (each second|every {quota.every_s} s)" if quota.regained else ""
    assert re.fullmatch(rf"tenant lab has used 9 of 8 [\w ]+ \(quota {quota.name}{rate}\); .+; try again in 2 s", text), text


def test_the_client_says_why_its_batches_are_delayed(capsys: pytest.CaptureFixture[str]) -> None:
    progress.delayed(Excess("messages", 8, 8, 100), "lab")
    progress.delayed(Excess("of a newer\x1bnode", 8, 8, 100), "lab")
    known, unknown = capsys.readouterr().err.splitlines()
    assert known.startswith("wooly: the node delays this script: tenant lab has used 8 of 8 batches (quota messages")
    assert unknown == "wooly: the node delays this script: quota of a newer\\x1bnode is used up"
