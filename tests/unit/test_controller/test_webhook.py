"""Which addresses a controller notifies, and that it reaches no other."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Callable

import pytest

from services.controller.webhook import Webhooks


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/hook",
        "https://example.org:8443/a?b=c",
        "http://8.8.8.8/",
        "https://[2606:4700::1]/",
        "http://[64:ff9b::808:808]/",
        "http://[2002:808:808::]/",
    ],
)
def test_public_addresses_may_be_tried(url: str) -> None:
    assert Webhooks(private=False).refusal(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://10.1.2.3/", "http://192.168.0.1:80/", "http://172.16.0.1/", "http://169.254.169.254/latest/meta-data",
        "http://0.0.0.0/", "http://[::1]/", "http://[fe80::1]/", "http://[fd00::1]/", "http://[::ffff:10.0.0.1]/", "http://[::ffff:127.0.0.1]/",
        "http://localhost/", "http://LOCALHOST./", "http://a.localhost/", "http://224.0.0.1/", "http://100.64.0.1/",
        "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::10.0.0.1]/", "http://[64:ff9b:1::1]/", "http://[::127.0.0.1]/", "http://[fec0::1]/",
        "http://[2002:a00:1::]/", "http://[2001:0:a00:1::]/", "http://[3fff::1]/", "http://[5f00::1]/", "http://[ff0e::1]/",
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
    outcome = webhooks.step("t", "lab", url, dict)
    while webhooks.busy:  # noqa: ASYNC110  # polled as a controller does
        await asyncio.sleep(0.01)
    outcome = outcome or webhooks.step("t", "lab", url, dict)
    await webhooks.close()
    return outcome


class _Drips:
    """A receiver whose answer does not end: a byte now and then. ``held``: connections that are open."""

    def __init__(self) -> None:
        self.held: set[asyncio.StreamWriter] = set()
        self.came = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.held.add(writer)
        self.came += 1
        writer.write(b"HTTP/1.1 2")
        while await reader.read(1 << 16):
            pass
        self.held.discard(writer)
        writer.close()


async def _polled(webhooks: Webhooks, steps: Callable[[], object], done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():  # polled as a controller does
            steps()
            await asyncio.sleep(0.01)


def test_a_receiver_that_never_ends_its_answer_holds_neither_threads_nor_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.controller.webhook._ATTEMPT_S", 0.5)

    async def body() -> None:
        drips, good = _Drips(), _Drips()

        async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            good.came += 1
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        slow = await asyncio.start_server(drips.serve, "127.0.0.1", 0)
        quick = await asyncio.start_server(answers, "127.0.0.1", 0)
        bad, fine = (f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/" for server in (slow, quick))
        webhooks, outcomes = Webhooks(private=True), set[str]()

        def steps() -> None:
            for number in range(200):
                webhooks.step(f"bad {number}", "hostile", bad, dict)
            outcomes.add(webhooks.step("good", "best", fine, dict))

        await _polled(webhooks, steps, lambda: "delivered" in outcomes)
        assert good.came == 1 and len(drips.held) <= 4, len(drips.held)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 30) == 1
        came = drips.came
        await _polled(webhooks, lambda: None, lambda: not drips.held and not webhooks.busy)
        assert came <= drips.came <= 4
        await webhooks.close()
        slow.close()
        quick.close()

    asyncio.run(body())
