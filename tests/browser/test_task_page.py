"""The page of one task in a real browser: its log follows the script, its timeline can be zoomed."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.chrome import MISSING, Chrome
from tests.support.stack import ROOT, EmbeddedStack

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """import os, time, torch
x = torch.ones(1000, device="cuda")
for line in range(200):
    x = x + 1
    print("line", line, flush=True)
    while line == 100 and not os.path.exists(GATE):
        time.sleep(0.1)
print("sum", x.sum().item())
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(None, "--runner", WOOLY_BACKEND="reference", RUNNER_PYTHONPATH=str(ROOT)) as running:
        yield running


@pytest.fixture(scope="module")
def browser(stack: EmbeddedStack) -> Iterator[Chrome]:
    with Chrome(stack.addresses["controller"]) as started:
        yield started


def test_the_log_follows_the_script_and_the_timeline_is_zoomed(stack: EmbeddedStack, browser: Chrome, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = json.dumps({"id": "counting", "script": f"GATE = {str(gate)!r}\n{SCRIPT}", "required_vram_mb": 16}).encode()
    request = urllib.request.Request(f"{stack.addresses['controller']}/api/v1/runs", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()
    browser.open("/tasks/counting")
    browser.says("line 100", ".log")
    from_end = "const log = document.querySelector('.log'); return log.scrollHeight - log.scrollTop - log.clientHeight"
    browser.until(lambda: browser.run(from_end) < 8 or None, "the log is at its end")
    gate.touch()
    browser.says("sum ", ".log")
    browser.until(lambda: browser.run(from_end) < 8 or None, "the log is at its end again")
    assert browser.console() == []

    browser.until(lambda: stack.get("controller", "/api/v1/tasks/counting")["state"] == "completed" or None, "it is over")
    browser.open("/tasks/counting")
    browser.until(lambda: browser.all(".gantt .gantt-run") or None, "the time it ran is drawn")

    def shown() -> tuple[float, float]:
        views = {svg.get_dom_attribute("viewBox") for svg in browser.all("svg.gantt")}
        assert len(views) == 1, "memory and time show the same part"
        left, _, width, _ = map(float, str(views.pop()).split())
        return left, width

    slots = shown()[1]
    first, *_, last = [tick.text for tick in browser.all(".ticks span")]
    browser.click_text("Zoom in")
    assert shown() == pytest.approx((slots / 4, slots / 2), abs=0.1)
    zoomed = [tick.text for tick in browser.all(".ticks span")]
    assert first < zoomed[0] < zoomed[-1] < last and zoomed[0] in browser.text("[data-zoom-range]")
    for key, view in ((Keys.ARROW_RIGHT, (slots / 2, slots / 2)), ("-", (0.0, slots)), ("+", (slots / 4, slots / 2)), ("0", (0.0, slots))):
        browser.driver.switch_to.active_element.send_keys(key)
        assert shown() == pytest.approx(view, abs=0.1), key
    band = browser.one("svg.gantt")
    width = band.size["width"]
    ActionChains(browser.driver).move_to_element(band).click_and_hold().move_by_offset(width // 4, 0).release().perform()
    left, part = shown()
    assert (left, part) == pytest.approx((slots / 2, slots / 4), abs=slots / 50)
    assert browser.faults() == [] and browser.overflow_px() <= 0
    browser.resize(390, 844)
    assert browser.faults() == [] and browser.overflow_px() <= 0
    ActionChains(browser.driver).double_click(browser.one("svg.gantt")).perform()
    assert shown() == (0.0, slots) and browser.one("[data-zoom-range]").text == ""
    assert browser.console() == []
    with browser.without_scripts():
        browser.open("/tasks/counting/ran")
        assert browser.all("svg.gantt .gantt-run") and not any(button.is_displayed() for button in browser.all("[data-zoom-act]"))
