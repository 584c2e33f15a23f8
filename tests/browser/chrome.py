"""A headless Chromium as tests and screenshots drive it: sizes, themes, JavaScript off, what its console said, and axe-core."""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["AXE", "MISSING", "Chrome"]

T = TypeVar("T")

AXE = Path(__file__).parent / "assets" / "axe.min.js"
_WAIT_S = 60
_DRAWN_ANEW = "does not belong to the document"
"""What chromedriver says of an element whose page was just replaced, when it has no better error."""
_OUR_FAULT = re.compile(r"^network: .*the server responded with a status of 4(00|03|04|09) ")
_BINARY, _DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
MISSING = "" if _BINARY and _DRIVER else "there is no browser: apt-get install chromium chromium-driver"
"""Why there can be no browser test here, or nothing."""


class Chrome:
    """A browser for the time of a ``with`` block, looking at pages under ``base``."""

    def __init__(self, base: str, *, width: int = 1440, height: int = 900) -> None:
        self.base = base
        self._size = (width, height)

    def __enter__(self) -> Self:
        options = webdriver.ChromeOptions()
        options.binary_location = str(_BINARY)
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio"):
            options.add_argument(flag)
        options.add_argument(f"--window-size={self._size[0]},{self._size[1]}")
        options.accept_insecure_certs = True
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(_DRIVER)))
        self.driver.set_page_load_timeout(_WAIT_S)
        self.driver.set_script_timeout(_WAIT_S)
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.driver.quit()

    # -- looking -------------------------------------------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, theme: str) -> None:
        """What the person's system prefers: ``light`` or ``dark``. Movement is reduced: a picture in the middle of a fade is no picture."""
        features = [{"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    @contextlib.contextmanager
    def without_scripts(self) -> Iterator[None]:
        """Pages opened inside run no JavaScript."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """The element, as soon as there is one."""
        return self.until(lambda: next(iter(self.all(css)), None), f"there is no {css}")

    def text(self, css: str = "body") -> str:
        return self.until(lambda: self._text(css), f"{css} has no text")

    def _text(self, css: str) -> str:
        try:
            return self.driver.find_element(By.CSS_SELECTOR, css).text
        except (NoSuchElementException, StaleElementReferenceException):
            return ""

    def says(self, text: str, css: str = "body") -> None:
        """Wait until the text is shown in ``css``."""
        self.until(lambda: text in self._text(css), f"{css} does not say {text!r}")

    def until(self, condition: Callable[[], T | None], what: str) -> T:
        """Wait for a condition; AssertionError with where we are when it does not come true."""

        def asked(_: Any) -> T | bool:
            try:
                return condition() or False
            except (NoSuchElementException, StaleElementReferenceException):
                return False
            except WebDriverException as error:
                if _DRAWN_ANEW in str(error.msg):
                    return False
                raise

        try:
            return WebDriverWait(self.driver, _WAIT_S, poll_frequency=0.03).until(asked)  # type: ignore[return-value]  # never False
        except Exception as error:
            raise AssertionError(f"{what} at {self.driver.current_url}:\n{self._text('body')[:1500]}\n{self.console()}") from error

    # -- doing ---------------------------------------------------------------------------------------------------------------------

    def click(self, css: str) -> None:
        self._press(self.one(css))

    def click_text(self, text: str, css: str = "a, button, summary") -> None:
        """Click the link or button that shows this text."""
        shown = self.until(lambda: [one for one in self.all(css) if one.is_displayed() and text in one.text], f"no {text!r}")
        self._press(shown[0])

    def _press(self, element: WebElement) -> None:
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def fill(self, css: str, value: str) -> None:
        field = self.one(css)
        field.clear()
        field.send_keys(value)

    def choose(self, css: str, value: str) -> None:
        """Choose an option of a select, as a person does: with its events."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))"
        self.driver.execute_script(script, self.one(css), value)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    # -- judging -------------------------------------------------------------------------------------------------------------------

    def console(self) -> list[str]:
        """Warnings and errors since the last look: scripts that failed, and what the content security policy stopped. Not among them: that
        the answer to a form, or a page that is none, has a status of the caller's fault."""
        entries = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        lines = [f"{entry['source']}: {entry['message']}" for entry in entries]
        return [line for line in lines if not _OUR_FAULT.search(line) or "/static/" in line]

    def faults(self) -> list[str]:
        """Serious and critical findings of axe-core on the page as it is now, one line each."""
        if not self.run("return typeof window.axe === 'object'"):
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})  # past the page's content security policy
        script = """
            const done = arguments[arguments.length - 1];
            const why = node => node.html.slice(0, 160) + ' <- ' + (node.any[0] || node.all[0] || node.none[0] || {}).message;
            const line = found => found.id + ': ' + found.help + ' | ' + found.nodes.slice(0, 4).map(why).join(' || ');
            axe.run(document, {resultTypes: ['violations']}).then(
                result => done(result.violations.filter(found => ['serious', 'critical'].includes(found.impact)).map(line)),
                error => done(['axe did not run: ' + error]));
        """
        found: list[str] = self.driver.execute_async_script(script)
        return found

    def overflow_px(self) -> int:
        """How many pixels the page is wider than the window."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def screenshot(self, *, whole: bool = False) -> bytes:
        """PNG of the window, or of the whole page."""
        answer = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        return base64.b64decode(answer["data"])
