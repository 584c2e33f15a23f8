"""Every page and flow in a real browser, on real processes: bus, controller, billing, three nodes of different sizes, live tasks.

One stack and one browser for the whole module; tests leave behind what later ones do not mind.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from bus_schemas.events import UsageRecorded
from services.kit.bus import connect
from tests.browser.chrome import MISSING, Chrome
from tests.support.house import House
from tests.support.node import until

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.slow, pytest.mark.timeout(600)]

EVIL = "<img src=x onerror=window.pwned=1>'\"</script><script>window.pwned=1</script>{{7*7}}"


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with House(history=True, CONTROLLER_NODE_LEASE_MS="120000") as started:
        started.fill()
        yield started


@pytest.fixture(scope="module")
def browser(house: House) -> Iterator[Chrome]:
    with Chrome(house.url) as started:
        yield started


@pytest.fixture(autouse=True)
def quiet(browser: Chrome) -> Iterator[None]:
    """Whatever a test does, the console stays silent: no script failed, and the content security policy had nothing to stop."""
    browser.resize(1440, 900)
    browser.scheme("light")
    yield
    assert browser.console() == []


def ask(house: House, method: str, path: str, body: Any = None) -> Any:
    answer = house.controller.ask(method, path, body)
    assert answer.status < 400, answer.body
    return answer.json


def task_of(house: House, title: str, field: str = "id") -> str:
    """The id, or another field, of the newest task of this title."""
    items = ask(house, "GET", "/api/v1/tasks?limit=1000")["items"]
    return next(str(task[field]) for task in items if task["title"] == title)


def confirm(browser: Chrome, button: str) -> None:
    """Answer the question that is asked before an action."""
    browser.until(lambda: browser.all("#confirm[open]") or None, "no question was asked")
    browser.click_text(button, "#confirm button")


PAGES = ("/", "/tasks?open={running}", "/nodes/atlas", "/credits", "/settings/keys", "/login")
MORE_PAGES = (
    "/tasks", "/tasks/{waiting}", "/tasks/new", "/tasks?q=nobody-has-this", "/nodes", "/groups", "/groups/new", "/groups/research",
    "/credits?by=task&period=day", "/utilization", "/utilization?by=task&period=week",
    "/settings", "/settings/tiers", "/settings/users", "/settings/totp", "/settings/tenants", "/settings/quotas",
    "/settings/audit", "/help",
)  # fmt: skip
later = pytest.mark.soak
"""Part of ``make browser``, with the rest; ``make test`` has a minute for a browser at most."""


@pytest.mark.parametrize("path", [*PAGES, *(pytest.param(path, marks=later) for path in MORE_PAGES)])
def test_a_page_is_sound_in_both_themes_and_both_widths(house: House, browser: Chrome, path: str) -> None:
    """axe-core finds nothing serious, nothing sticks out sideways, and there is one heading of the first rank."""
    if "{" in path:
        path = path.format(running=task_of(house, "chat-7b serving"), waiting=task_of(house, "pretraining restart"))
    browser.open(path)
    assert browser.faults() == []
    assert browser.overflow_px() <= 0
    assert len(browser.all("h1")) == 1
    browser.scheme("dark")
    browser.resize(390, 844)
    assert browser.faults() == []
    assert browser.overflow_px() <= 0


def test_the_page_of_a_task_shows_what_it_did_on_its_device(house: House, browser: Chrome) -> None:
    """Of one that runs, and of one that is over; on its own page, and in the table."""
    running, over = (task_of(house, title) for title in ("chat-7b serving", "unit test of a kernel"))
    for path in (f"/tasks/{running}", f"/tasks/{over}", f"/tasks?open={running}"):
        browser.scheme("light")
        browser.resize(1440, 900)
        browser.open(path)
        browser.until(lambda: browser.all(".gantt .gantt-run") or None, "the time it ran is drawn")
        assert browser.all(".gantt-vram .vram-resident"), "and its memory"
        for details in browser.all(".ran details"):
            browser.run("arguments[0].open = true", details)
        assert len(browser.all(".gantt-figure tbody tr")) > 10
        assert "add" in [cell.text for cell in browser.all(".ran tbody th")], "the operations of its program"
        assert browser.faults() == [] and browser.overflow_px() <= 0
        browser.scheme("dark")
        browser.resize(390, 844)
        assert browser.faults() == [] and browser.overflow_px() <= 0


def test_search_filters_sort_and_back(browser: Chrome) -> None:
    browser.open("/tasks")
    browser.run("document.activeElement.blur()")
    browser.one("body").send_keys("/")  # the key that every list page knows
    browser.driver.switch_to.active_element.send_keys("finetune")
    browser.until(lambda: len(browser.all("#task-rows > tr")) == 1 or None, "search leaves one row")
    assert "q=finetune" in browser.driver.current_url
    browser.click_text("Clear")
    browser.until(lambda: len(browser.all("#task-rows > tr")) >= 9 or None, "all rows again")
    browser.choose("#listing-tenant", "globex")
    browser.until(lambda: "tenant=globex" in browser.driver.current_url or None, "the address says the filter")
    browser.click_text("Queued", ".states a")
    browser.until(lambda: "state=queued" in browser.driver.current_url or None, "and the state")
    browser.until(lambda: {"globex"} == {cell.text for cell in browser.all("#task-rows td:nth-child(3)")} or None, "only globex waits here")
    browser.open("/tasks?sort=priority")
    levels = browser.until(lambda: [cell.text for cell in browser.all("#task-rows .prio")], "no rows")
    assert levels == sorted(levels)
    browser.click_text("Priority", "thead a")
    browser.until(lambda: "sort=-priority" in browser.driver.current_url or None, "the other way round")
    browser.driver.back()
    browser.until(lambda: [cell.text for cell in browser.all("#task-rows .prio")] == levels or None, "back is back")


def test_a_row_opens_to_its_story_by_keyboard_and_has_an_address(house: House, browser: Chrome) -> None:
    task = task_of(house, "chat-7b serving")
    browser.open("/tasks")
    browser.one(f"#open-{task}").send_keys(Keys.ENTER)
    browser.says("Placement", f"#story-{task}")
    assert f"open={task}" in browser.driver.current_url
    assert browser.driver.switch_to.active_element.get_attribute("id") == f"open-{task}"
    opened = f"Session opened on {task_of(house, 'chat-7b serving', 'node_name')}"
    for text in ("the best of", "chosen", "Why not the others", "serves only tasks that target", opened, "Submitted"):
        browser.says(text, f"#story-{task}")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until(lambda: not browser.all(f"#story-{task}") or None, "it closes again")
    until(lambda: "GiB·s" in house.controller.ask("GET", f"/tasks/{task}").body.decode(), "the bill so far is there")
    browser.open(f"/tasks/{task}")
    browser.says("GiB·s")


def test_why_it_waits_and_what_would_free_it(house: House, browser: Chrome) -> None:
    browser.open(f"/tasks/{task_of(house, 'pretraining restart')}")
    waits = browser.text(".waits")
    assert "in the queue" in waits and "It has waited" in waits and "What would let it in" in waits
    assert "overcommit" in waits.lower() or "end of" in waits.lower()
    assert "Not enough VRAM is left" in browser.text()


def test_a_new_task_appears_on_an_open_page(house: House, browser: Chrome) -> None:
    browser.open("/tasks")
    browser.says("Live", "#live-state")
    browser.run("window.stayed = true")
    ask(house, "POST", "/api/v1/tasks", {"title": "just now", "tenant": "acme", "required_vram_mb": 2999, "gpu_count": 2, "queue": True})
    browser.says("just now", "#task-rows > tr:first-child .task-link")
    assert browser.run("return window.stayed")


def test_submit_correct_cancel(house: House, browser: Chrome) -> None:
    browser.open("/tasks/new")
    browser.fill("#f-title", "from the form")
    browser.fill("#f-required_vram_mb", "2998")
    browser.choose("#f-gpu_mode", "Exclusive")
    browser.run("document.querySelector('details').open = true")
    browser.fill("#f-id", "not allowed!")
    browser.click_text("Submit", "main button")
    browser.says("letters, digits", "#f-id-error")
    assert browser.one("#f-title").get_attribute("value") == "from the form"
    browser.fill("#f-id", "from-the-form")
    browser.click_text("Submit", "main button")
    browser.says("Submitted.", "[data-flash]")
    browser.click_text("Cancel the task")
    confirm(browser, "Cancel")
    assert house.controller.get("/api/v1/tasks/from-the-form")["state"] == "queued"
    browser.click_text("Cancel the task")
    confirm(browser, "Cancel the task")
    browser.says("Cancelled.", "[data-flash]")
    assert "cancelled by local" in browser.text()
    assert house.controller.get("/api/v1/tasks/from-the-form")["state"] == "cancelled"


def test_a_stale_page_changes_nothing_and_says_so(house: House, browser: Chrome) -> None:
    task = task_of(house, "benchmark")
    browser.open(f"/tasks/{task}")
    ask(house, "PATCH", f"/api/v1/tasks/{task}", {"priority": 4})
    browser.says("The task has changed since this page was loaded")  # this moves the form down: not during the click
    browser.choose(f"#priority-{task}", "0")
    browser.click_text("Change priority")
    confirm(browser, "Change priority")
    browser.says("Nothing was done", "[data-flash]")
    assert house.controller.get(f"/api/v1/tasks/{task}")["priority"] == 4
    browser.choose(f"#priority-{task}", "1")
    browser.click_text("Change priority")
    confirm(browser, "Change priority")
    browser.says("Priority 1 from now on", "[data-flash]")
    assert "was P3" in browser.text()


@later
def test_groups_come_change_and_go(house: House, browser: Chrome) -> None:
    browser.open("/groups")
    browser.click_text("New group")
    browser.fill("#f-id", "night shift")
    browser.click_text("Save", "main button")
    browser.says("letters, digits", "#f-id-error")
    browser.fill("#f-id", "night")
    browser.fill("#f-title", "Night shift")
    browser.click_text("Save", "main button")
    browser.says("empty", "#group-night")
    browser.click_text("night", "#group-night a")
    browser.click('input[value="borealis"]')
    browser.click_text("Save", "main button")
    browser.says("borealis", "#group-night")
    assert house.controller.get("/api/v1/groups/night")["nodes"] == ["borealis"]
    browser.open("/groups/night")
    browser.click_text("Delete this group")
    confirm(browser, "Delete this group")
    browser.says("is deleted", "[data-flash]")
    assert house.controller.ask("GET", "/api/v1/groups/night").status == 404


@later
def test_a_node_is_drained_and_resumed(house: House, browser: Chrome) -> None:
    browser.open("/nodes/cirrus")
    browser.click_text("Drain")
    confirm(browser, "Drain")
    browser.until(lambda: house.controller.get("/api/v1/nodes/cirrus")["drained"] or None, "it is drained")
    browser.click_text("Resume")
    browser.until(lambda: not house.controller.get("/api/v1/nodes/cirrus")["drained"] or None, "it takes tasks again")


@later
def test_settings_are_changed_and_given_back(house: House, browser: Chrome) -> None:
    browser.open("/settings")
    browser.fill("#f-default_vram_overcommit_percent", "2000")
    browser.run("document.querySelector('main form').noValidate = true")
    browser.click_text("Save", "main button")
    browser.says("from 0 to 1000", "#f-default_vram_overcommit_percent-error")
    browser.fill("#f-default_vram_overcommit_percent", "15")
    browser.click_text("Save", "main button")
    browser.says("Saved", "[data-flash]")
    assert house.controller.get("/api/v1/config")["default_vram_overcommit_percent"] == 15
    assert "stored here" in browser.text()
    browser.fill("#f-default_vram_overcommit_percent", "")
    browser.click_text("Save", "main button")
    browser.until(lambda: house.controller.get("/api/v1/config")["source"] != "stored" or None, "the default holds again")


def test_the_secret_of_a_key_is_shown_once(house: House, browser: Chrome) -> None:
    browser.open("/settings/keys")
    browser.click_text("New key", "summary")
    browser.fill("#f-title", "ci runner")
    browser.choose("#f-role", "viewer")
    browser.click('input[name="scopes"][value="read"]')
    browser.fill("#f-expires_days", "30")
    browser.click_text("Create key", "main button")
    secret = browser.text("#new-key")
    assert secret.startswith("wk_") and len(secret) == 72
    browser.open("/settings/keys")
    key = secret.split("_")[1]
    assert key in browser.text() and secret.split("_")[2] not in browser.driver.page_source
    browser.click(f"#key-{key} button")
    confirm(browser, "Revoke")
    browser.says("revoked", f"#key-{key}")


@later
def test_tenants_users_and_what_was_done(house: House, browser: Chrome) -> None:
    browser.open("/settings/tenants")
    browser.click_text("New tenant", "summary")
    browser.fill("#f-id", "initech")
    browser.click_text("Create tenant", "main button")
    browser.says("active", "#tenant-initech")
    browser.open("/settings/users")
    browser.click_text("New user", "summary")
    browser.fill("#f-id", "peter")
    browser.fill("#f-tenant", "initech")
    browser.fill("#f-password", "short")
    browser.click_text("Create user", "main button")
    browser.says("12", "#f-password-error")
    browser.fill("#f-password", "red stapler of milton")
    browser.click_text("Create user", "main button")
    browser.says("password", "#user-peter")
    browser.click_text("peter", "#user-peter a")
    browser.click('input[name="disabled"]')
    browser.click_text("Save", "main button")
    browser.says("disabled", "#user-peter")
    browser.open("/settings/tenants")
    browser.click_text("Disable", "#tenant-initech button")
    confirm(browser, "Disable")
    browser.says("disabled", "#tenant-initech")
    browser.open("/settings/audit?action=user.write")
    browser.says("peter", "tbody")
    assert "created: member" in browser.text("tbody")


@later
def test_credits_budgets_and_files(house: House, browser: Chrome) -> None:
    until(lambda: browser.open("/credits") or "acme" in browser.text("#listing table"), "something was charged")
    assert browser.all("figure .uplot canvas"), "a chart is drawn"
    browser.click_text("By model", ".segment a")
    browser.says("chat-7b serving", "#listing")
    browser.click_text("By task", ".segment a")
    browser.click_text("24 hours", ".segment a")
    assert "by=task" in browser.driver.current_url and "period=day" in browser.driver.current_url
    browser.open("/credits?period=custom&from=2030-01-02&to=2030-01-01")
    browser.says("The first day is after the last", "[role=alert]")
    browser.open("/credits?tenant=acme")
    browser.click_text("Grant credits", "summary")
    browser.fill("[name=credits]", "250000.5")
    browser.click_text("Grant", "form[action='/credits/grant'] button")
    confirm(browser, "Grant")
    browser.says("Granted to acme", "[data-flash]")
    browser.click_text("Set a budget", "summary")
    browser.fill("[name=limit]", "1000000")
    browser.click_text("Set", "form[action='/credits/budget'] button")
    browser.says("this month", ".budget")
    assert "Warns at 80 %, stops at 100 %" in browser.text(".budget")
    with urllib.request.urlopen(f"{house.url}/credits/export.csv?by=tenant&period=day") as answer:
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.read().decode().splitlines()[0].startswith("tenant,core_credits,vram_credits")
    browser.open(f"/credits/statement/acme?month={time.strftime('%Y-%m', time.gmtime())}")
    assert "acme" in browser.text()


@later
def test_utilization_of_devices_and_tasks(house: House, browser: Chrome) -> None:
    until(lambda: browser.open("/utilization") or "borealis GPU 0" in browser.text("#listing table"), "a device has accounted")
    assert browser.all(".gantt rect.state-cpu_bound"), "guests pause between steps: the device waits for them"
    browser.click_text("States of borealis GPU 0 as a table", "summary")
    browser.says("CPU bound", ".as-table[open] thead")
    browser.click_text("By task", ".segment a")
    browser.says("chat-7b serving", "#listing")
    browser.click_text("24 hours", ".segment a")
    assert "by=task" in browser.driver.current_url and "period=day" in browser.driver.current_url
    with urllib.request.urlopen(f"{house.url}/utilization/export.csv?by=node&period=day") as answer:
        assert answer.read().decode().splitlines()[0].startswith("node,busy_ns,underused_ns")


def test_everything_can_be_read_and_done_without_scripts(house: House, browser: Chrome) -> None:
    task = ask(house, "POST", "/api/v1/tasks", {"title": "plain", "required_vram_mb": 2997, "gpu_count": 2, "queue": True})["id"]
    with browser.without_scripts():
        browser.open("/tasks?q=plain")
        browser.click(f"#open-{task}")
        browser.says("Why no device fits", f"#story-{task}")
        browser.click(f"#story-{task} .button-danger")
        browser.says("Cancelled.", "[data-flash]")
        for path in ("/", "/nodes", "/groups", "/credits", "/utilization", "/settings"):
            browser.open(path)
            assert browser.text("h1")
    assert house.controller.get(f"/api/v1/tasks/{task}")["state"] == "cancelled"


@later
def test_a_theme_is_chosen_and_stays(browser: Chrome) -> None:
    browser.open("/groups")
    browser.run("document.querySelector('[data-theme-switch] input[value=dark]').click()")
    browser.open("/tasks")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(12, 15, 20)"
    browser.run("document.querySelector('[data-theme-switch] input[value=system]').click()")
    assert browser.run("return document.documentElement.dataset.theme || ''") == ""


@later
def test_an_address_that_is_none_is_a_page_that_helps(browser: Chrome) -> None:
    browser.open("/tasks/there-is-none")
    browser.says("There is nothing here", "h1")
    assert browser.faults() == []


def test_the_api_page_sends_a_request_to_billing(browser: Chrome) -> None:
    browser.open("/schema/swagger?service=billing")
    browser.says("Report credits used, by tenant, task, model or node")
    browser.run("document.querySelector('.opblock-summary-control').click()")
    browser.click_text("Try it out", "button")
    browser.click_text("Execute", "button.execute")
    browser.says('"core_credits_micro"', ".live-responses-table")


def test_names_are_text_wherever_they_are_shown(house: House, browser: Chrome) -> None:
    task = ask(house, "POST", "/api/v1/tasks", {"title": EVIL, "tenant": EVIL, "required_vram_mb": 2996, "gpu_count": 2, "queue": True})[
        "id"
    ]
    ask(house, "POST", "/api/v1/groups", {"id": "evil", "title": EVIL})
    ask(house, "POST", "/api/v1/tenants", {"id": "evil", "title": EVIL})
    now_ns = time.time_ns()

    async def charge() -> None:
        bus = await connect(house.nats.url, name="test")
        usage = (now_ns - 10**9, now_ns, 10**9, 10**6, 1, 1)
        facts = [UsageRecorded("ghost", 1, 0, serial, "s", tenant, task, 0, *usage) for serial, tenant in ((1, EVIL), (2, "=1+1"))]
        await bus.publish_events("usage", "ghost", facts)
        await bus.close()

    asyncio.run(charge())
    for path in (f"/tasks?open={task}", f"/tasks/{task}", "/groups", "/groups/evil", "/settings/tenants", "/settings/audit", "/"):
        browser.open(path)
        assert browser.run("return window.pwned") is None
    browser.open(f"/tasks?open={task}")
    assert EVIL in browser.text(f"#task-{task}") and "49" not in browser.text(f"#task-{task} .task-link")
    until(lambda: browser.open("/credits") or EVIL in browser.text("#listing"), "the tenant is billed")
    assert browser.run("return window.pwned") is None
    with urllib.request.urlopen(f"{house.url}/credits/export.csv?by=tenant&period=day") as answer:
        cells = [line.split(",")[0] for line in answer.read().decode().splitlines()]
    assert "'=1+1" in cells and "=1+1" not in cells
