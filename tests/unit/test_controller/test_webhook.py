"""Which addresses a controller notifies, and that it reaches no other."""

from __future__ import annotations

import asyncio
import http.server
import threading

import pytest

from services.controller.webhook import Webhooks


@pytest.mark.parametrize("url", ["http://example.org/hook", "https://example.org:8443/a?b=c", "http://8.8.8.8/", "https://[2606:4700::1]/"])
def test_public_addresses_may_be_tried(url: str) -> None:
    assert Webhooks(private=False).refusal(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://10.1.2.3/", "http://192.168.0.1:80/", "http://172.16.0.1/", "http://169.254.169.254/latest/meta-data",
        "http://0.0.0.0/", "http://[::1]/", "http://[fe80::1]/", "http://[fd00::1]/", "http://[::ffff:10.0.0.1]/", "http://[::ffff:127.0.0.1]/",
        "http://localhost/", "http://LOCALHOST./", "http://a.localhost/", "http://224.0.0.1/", "http://100.64.0.1/",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_need_the_switch(url: str) -> None:
    assert "is not a public address" in Webhooks(private=False).refusal(url)
    assert Webhooks(private=True).refusal(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "http://user@example.org/", "http://u:p@example.org/",
        "http://example.org:99999/", "http://example.org/\r\nHost: other", "http://exa mple.org/", "http://example.org/" + "x" * 2000,
        "gopher://example.org/", "http://[::1", "http://example.org/é",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    assert Webhooks(private=True).refusal(url).startswith("write a URL such as")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost.localdomain"])
def test_a_name_that_leads_to_this_machine_is_not_reached(host: str) -> None:
    """The resolver reads numbers in many forms; what counts is the address that comes out."""
    asked: list[str] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        outcome = asyncio.run(_first_attempt(f"http://{host}:{server.server_port}/"))
        server.shutdown()
    assert asked == [] and (outcome == "" or "is not a public address" in outcome)


async def _first_attempt(url: str) -> str:
    """How the first attempt ended; empty: it will be tried again, as the name is not known here."""
    webhooks = Webhooks(private=False)
    outcome = webhooks.step("t", url, dict)
    while webhooks.busy:  # noqa: ASYNC110  # polled as a controller does
        await asyncio.sleep(0.01)
    outcome = outcome or webhooks.step("t", url, dict)
    await webhooks.close()
    return outcome
