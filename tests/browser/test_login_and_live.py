"""In a browser, with authentication: logging in leads where one wanted to go, an action is asked about, the page shows that it was cut off
and comes back by itself, charts grow, logging out ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from bus_schemas.telemetry import Telemetry
from services.kit.access.tokens import make_key
from services.kit.process import free_port
from tests.browser.chrome import MISSING, Chrome
from tests.support.plane import GIB, Plane

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

KEY = make_key().text


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    address = f"127.0.0.1:{free_port()}"  # the same after a restart
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=KEY, WOOLY_HTTP=address) as running:
        running.register("n1")
        yield running


@pytest.fixture(scope="module")
def browser(plane: Plane) -> Iterator[Chrome]:
    with Chrome(plane.controller.url) as running:
        yield running


def log_in(browser: Chrome, key: str) -> None:
    if not browser.one("#f-key").is_displayed():
        browser.click("summary")
    browser.fill("#f-key", key)
    browser.click("button.button-primary")


def test_the_way_in(plane: Plane, browser: Chrome) -> None:
    browser.open("/nodes?q=n1")
    browser.says("Log in", "h1")
    assert browser.faults() == []
    log_in(browser, KEY[:-4] + "AAAA")
    browser.says("Wrong user, password, code or key", "[role=alert]")
    assert browser.faults() == []
    log_in(browser, KEY)
    browser.says("Nodes", "h1")
    assert browser.driver.current_url.endswith("/nodes?q=n1")
    browser.says("Live", "#live-state")


def test_the_first_tab_skips_to_the_content(browser: Chrome) -> None:
    browser.open("/nodes/n1")
    browser.says("Live", "#live-state")
    browser.one("body").send_keys(Keys.TAB)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main"


def test_an_action_is_asked_about_and_can_be_left(browser: Chrome) -> None:
    browser.open("/nodes/n1")
    browser.click_text("Drain")
    browser.says("takes no new tasks", "#confirm")
    assert browser.faults() == []
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.until(lambda: not browser.one("#confirm").is_displayed(), "the dialog stays")
    browser.says("ready", "#node-facts")
    browser.click_text("Drain")
    browser.click("#confirm [data-yes]")
    browser.says("drained", "#node-facts")
    browser.says("takes no new tasks, and finishes those it has", "[data-flash]")
    browser.click_text("Resume")
    browser.says("ready", "#node-facts")


def test_figures_and_charts_follow_what_is_measured(plane: Plane, browser: Chrome) -> None:
    browser.open("/nodes/n1")
    browser.says("Live", "#live-state")
    browser.says("Nothing measured yet", "#load-0")
    for ago_s in (10, 0):  # a point comes when its slot of the chart is over, within the next two: on a busy machine the first may be late
        publish(plane, 64, ago_s=ago_s)
    browser.says("64 %", "#device-0")
    browser.says("64 %", "#load-0-figure .legend")
    browser.until(lambda: not browser.all("#load-0 .plot-empty"), "the chart still says that it is empty")
    browser.click_text("GPU 0: utilization and starvation as a table")
    publish(plane, 12)
    browser.says("12 %", "#device-0")
    assert browser.one("#load-0-figure details").get_attribute("open"), "a details element that the user opened was closed"


def publish(plane: Plane, utilization: int, ago_s: int = 0) -> None:
    """A measurement, as the node sends it (``Plane.measure`` asks REST, which wants a key here)."""
    plane.publish_telemetry(Telemetry(time.time_ns() - ago_s * 10**9, "n1", 1, 0, 1000, utilization, 5, 10 * GIB, 3 * GIB))


def test_a_page_says_that_it_was_cut_off_and_comes_back(plane: Plane, browser: Chrome) -> None:
    browser.open("/nodes/n1")
    browser.says("Live", "#live-state")
    plane.controller.kill()
    browser.says("The figures are from before the connection was lost", "#offline")
    assert browser.faults() == []
    plane.controller.start()
    browser.says("Live", "#live-state")
    browser.until(lambda: not browser.one("#offline").is_displayed(), "the page still says that it is offline")
    publish(plane, 37)
    browser.says("37 %", "#device-0")
    browser.console()  # of connections that were refused


def test_the_way_out(browser: Chrome) -> None:
    browser.open("/")
    browser.click(".account button")
    browser.says("Log in", "h1")
    browser.open("/nodes")
    browser.says("Log in", "h1")
    assert browser.console() == []
