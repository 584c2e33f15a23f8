"""From a form to a struct, from an address to a period, from billing's answer to a chart."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from bus_schemas.utilization import BUSY, IDLE, STATES
from scheduler.placement import ClusterView
from scheduler.placement.states import GLOBAL_LIMITS
from services.controller.bodies import KeyBody, NewGroupBody, TaskBody
from services.controller.errors import Invalid
from services.controller.presenters.config import settings_of
from services.controller.web.credits import address_of, ask_of, chart_of, rows_of
from services.controller.web.forms import read_as, revision_in
from services.controller.web.settings import micro_of
from services.controller.web.utilization import GROUPINGS, bands_of
from tests.browser.png import palette_png

NOON = int(datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC).timestamp())


def test_a_form_becomes_what_rest_takes() -> None:
    body, errors = read_as(TaskBody, {"required_vram_mb": "64", "queue": True, "groups": ["b", "a"], "priority": "0"})
    assert errors == {} and body == TaskBody(required_vram_mb=64, queue=True, groups=("b", "a"), priority=0)


@pytest.mark.parametrize(
    ("kind", "values", "field", "says"),
    [
        (NewGroupBody, {}, "id", "This is needed."),
        (TaskBody, {"required_vram_mb": "x"}, "required_vram_mb", "Write a whole number."),
        (TaskBody, {"required_vram_mb": "0"}, "required_vram_mb", "At least 1."),
        (TaskBody, {"required_vram_mb": "1", "priority": "5"}, "priority", "At most 4."),
        (TaskBody, {"required_vram_mb": "1", "gpu_mode": "Mine"}, "gpu_mode", "Choose one of what is offered."),
        (TaskBody, {"required_vram_mb": "1", "title": "x" * 201}, "title", "At most 200 characters or entries."),
        (TaskBody, {"required_vram_mb": "1", "colour": "red"}, "colour", "Object contains unknown field `colour`"),
        (NewGroupBody, {"id": "a b"}, "id", "Use letters, digits, - and _, at most 64."),
        (NewGroupBody, {"id": "a", "nodes": ["x", "../y"]}, "nodes", "Use letters, digits, - and _, at most 64."),
        (KeyBody, {"expires_in_s": "soon"}, "expires_in_s", "Write a whole number."),
        (KeyBody, {"scopes": ["all"]}, "scopes", "Choose one of what is offered."),
    ],
)
def test_errors_are_shown_at_their_field(kind: type, values: dict[str, Any], field: str, says: str) -> None:
    body, errors = read_as(kind, values)
    assert body is None and errors == {field: says}


@pytest.mark.parametrize("text", ["1e3", "-1", "²", "9" * 20])
def test_a_revision_is_a_number(text: str) -> None:
    assert revision_in({}) is None and revision_in({"revision": "17"}) == 17
    with pytest.raises(Invalid):
        revision_in({"revision": text})


@pytest.mark.parametrize(("text", "micro"), [("0.25", 250_000), ("1,500", 1_500_000_000), ("-3", -3_000_000), ("0.000001", 1)])
def test_credits_are_read_exactly(text: str, micro: int) -> None:
    assert micro_of("limit", text) == micro


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "0.0000001",
        "1e400",
        "NaN",
        "Infinity",
        "1e13",
        "1e999999",
        "0,25",
        "1,5",
        "12,50,000",
        ",5",
        "1.00000000000000000000000000001",
    ],
)
def test_what_are_no_credits(text: str) -> None:
    with pytest.raises(Invalid):
        micro_of("limit", text)


@pytest.mark.parametrize(
    ("query", "period", "seconds", "step"),
    [
        ({}, "hour", 3_600, "minute"),
        ({"period": "day"}, "day", 86_400, "hour"),
        ({"period": "quarter"}, "quarter", 90 * 86_400, "day"),
        ({"period": "for ever"}, "hour", 3_600, "minute"),
        ({"period": "custom", "from": "2026-11-01", "to": "2026-11-01"}, "custom", 86_400, "hour"),
        ({"from": "2026-11-20"}, "custom", 2 * 86_400, "hour"),
        ({"period": "custom"}, "custom", 86_400, "hour"),
    ],
)
def test_a_period_of_an_address(query: dict[str, str], period: str, seconds: int, step: str) -> None:
    asked = ask_of(query, NOON)
    assert (asked.period, asked.to_s - asked.from_s, asked.step, asked.wrong) == (period, seconds, step, "")
    assert asked.from_s <= NOON or period == "custom"


def test_this_month_begins_on_its_first() -> None:
    asked = ask_of({"period": "month"}, NOON)
    assert (asked.from_day, asked.to_day) == ("2026-11-01", "2026-11-21")


@pytest.mark.parametrize(
    "query",
    [
        {"period": "custom", "from": "yesterday"},
        {"period": "custom", "from": "2026-11-02", "to": "2026-11-01"},
        {"period": "custom", "from": "1900-01-01"},
        {"period": "custom", "from": "2026-11-01", "to": "9999-12-31"},
        {"period": "custom", "from": "0001-01-01", "to": "0001-01-01"},
    ],
)
def test_a_period_that_cannot_be_meant_is_said_to_be(query: dict[str, str]) -> None:
    asked = ask_of(query, NOON)
    assert asked.wrong and asked.period == "hour"


def test_a_member_asks_for_their_own_whatever_they_write() -> None:
    assert ask_of({"tenant": "globex"}, NOON, "acme").tenant == "acme"
    assert ask_of({"tenant": "globex"}, NOON).query["tenant"] == "globex"


def line(key: str, core: int, vram: int) -> dict[str, Any]:
    return {
        "key": key,
        "core_credits_micro": core,
        "vram_credits_micro": vram,
        "core_ns": 1,
        "byte_ms": 2,
        "launches": 3,
        "recovered_ns": 4,
    }


def test_the_dearest_is_first_and_shares_add_up() -> None:
    lines, total = rows_of({"items": [line("a", 1, 0), line("b", 2, 1), line("c", 0, 0)], "total": line("total", 3, 1)})
    assert [(one.key, one.micro, one.share) for one in lines] == [("b", 3, 75.0), ("a", 1, 25.0), ("c", 0, 0.0)]
    assert total.micro == 4 and rows_of({"items": [], "total": line("total", 0, 0)})[1].share == 0.0


def test_a_chart_and_its_table_say_the_same() -> None:
    minutes = [NOON // 60 * 60 + 60 * number for number in range(60)]
    lines = [{"key": "a", "other": False, "micro": [1_000_000] * 60}, {"key": "", "other": True, "micro": [500_000] * 60}]
    data, (head, rows) = chart_of({"times": minutes, "lines": lines}, 3_600, {"a": "<b>a</b>"})
    assert [one["label"] for one in data["series"]] == ["<b>a</b>", "others"] and data["series"][1]["class"] == "k6"
    assert head == ["From (UTC)", "<b>a</b>", "others"] and len(rows) <= 24
    assert sum(float(row[1]) for row in rows) == sum(data["series"][0]["values"]) == 60
    empty, _ = chart_of({"times": minutes, "lines": []}, 3_600, {})
    assert empty["series"][0]["values"] == [0] * 60


def test_states_of_a_device_are_drawn_with_their_figures_as_a_table() -> None:
    minute_ns = 60 * 10**9
    times = [[0] * 60 for _ in STATES]
    times[BUSY][58:] = [minute_ns // 4, minute_ns // 4]
    times[IDLE][58:] = [minute_ns * 3 // 4, minute_ns // 4]  # the last minute has only begun
    starts = [(NOON // 60 + number) * minute_ns for number in range(60)]
    (band,) = bands_of({"times_ns": starts, "step_ns": minute_ns, "devices": [{"key": "n/0", "node": "n", "times_ns": times}]}, {})
    assert [(column.x, column.parts) for column in band.columns] == [
        (58, (("state-busy", 75.0, 25.0), ("state-idle", 0.0, 75.0))),
        (59, (("state-busy", 75.0, 25.0), ("state-idle", 50.0, 25.0))),
    ]
    assert band.columns[0].title == "12:58: busy 25 %, idle 75 %"
    assert band.title == "n/0" and band.summary == "waste 66.7 % of 1 min 30 s: busy 33.3 %, idle 66.7 %"
    assert len(band.rows) <= 24 and band.rows[-1] == ["12:57", "30 s", "–", "–", "–", "–", "–", "1 min"]


@pytest.mark.parametrize(("query", "by"), [({}, "device"), ({"by": "model"}, "model"), ({"by": "colour"}, "device")])
def test_utilization_is_by_device_where_an_address_says_nothing_else(query: dict[str, str], by: str) -> None:
    asked = ask_of(query, NOON, groupings=GROUPINGS)
    assert asked.by == by and address_of(asked, "/utilization") == "/utilization" + ("?by=model" if by == "model" else "")


def test_every_global_setting_is_on_the_page() -> None:
    assert {one.key for one in settings_of(ClusterView())} == set(GLOBAL_LIMITS)
    assert {one.source for one in settings_of(ClusterView())} == {"default"}


def test_a_picture_keeps_its_rare_colours() -> None:
    pixels = np.full((40, 40, 3), 250, np.uint8)
    pixels[:, :30] += (np.arange(30, dtype=np.uint8) // 6)[None, :, None]
    pixels[4:8, 4:8] = (200, 20, 30)
    png = palette_png(pixels, colours=4)
    palette = png[png.index(b"PLTE") + 4 :][:12]
    assert png.startswith(b"\x89PNG") and bytes((200, 20, 30)) in palette
