"""Takes screenshots of every page, in both themes and both widths, of a small cluster with history; for docs/web.md.

python -m tests.browser.screenshots [--out docs/screenshots] [page ...]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import math
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from bus_schemas.events import DeviceAccounted, Event, UsageRecorded
from services.kit.access.tokens import make_key
from services.kit.bus import connect
from tests.browser.chrome import MISSING, Chrome
from tests.browser.png import palette_png
from tests.support.house import House
from tests.support.node import until
from tests.support.plane import Controller
from tests.support.stack import ROOT

_WIDTHS: Final = ((1440, 900, 1500), (390, 844, 1400))
"""(width, least height, largest height) of a picture."""
_MODELS: Final = {"acme": ("chat-7b serving", "embedding service"), "globex": ("finetune llama adapters", "nightly evaluation")}
_SETTLE: Final = """
    const done = arguments[arguments.length - 1];
    document.fonts.ready.then(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))));
"""
_READ: Final = """
    const done = arguments[arguments.length - 1], image = new Image();
    image.onload = () => {
        const canvas = document.createElement('canvas');
        canvas.width = image.width; canvas.height = image.height;
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        const data = context.getImageData(0, 0, image.width, image.height).data;
        let text = '';
        for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode.apply(null, data.subarray(at, at + 32768));
        done([image.width, image.height, btoa(text)]);
    };
    image.src = 'data:image/png;base64,' + arguments[0];
"""


def live_in(house: House) -> dict[str, str]:
    """People, budgets, groups and an hour of charges; ids for the addresses of pages."""
    house.fill()
    asyncio.run(_charge(house))
    for method, path, body in (
        ("POST", "/api/v1/tenants", {"id": "acme", "title": "Acme Corporation"}),
        ("POST", "/api/v1/tenants", {"id": "globex", "title": "Globex"}),
        ("POST", "/api/v1/users", {"id": "ada", "role": "admin", "title": "Ada Lovelace", "password": "analytical engine no 1"}),
        (
            "POST",
            "/api/v1/users",
            {"id": "grace", "role": "member", "tenant": "acme", "title": "Grace Hopper", "password": "a bug in the relay"},
        ),
        ("POST", "/api/v1/users", {"id": "alan", "role": "viewer", "tenant": "globex", "title": "Alan Turing"}),
        (
            "POST",
            "/api/v1/keys",
            {"title": "training cluster", "role": "member", "tenant": "acme", "user": "grace", "expires_in_s": 7_776_000},
        ),
        ("POST", "/api/v1/keys", {"title": "node atlas", "role": "node", "node": "atlas"}),
        ("POST", "/api/v1/groups", {"id": "night", "title": "Night shift"}),
    ):
        answer = house.controller.ask(method, path, body)
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.body.decode()}")
    with Chrome(house.url) as browser:
        for tenant, grant, limit in (("acme", "4000000", "5000000"), ("globex", "1800000", "1600000")):
            browser.open(f"/credits?tenant={tenant}")
            for path, values in (("grant", {"credits": grant, "note": "opening"}), ("budget", {"limit": limit, "period": "month"})):
                script = """
                    const form = document.querySelector(`form[action='/credits/${arguments[0]}']`);
                    for (const [name, value] of Object.entries(arguments[1])) form.elements[name].value = value;
                    form.submit();
                """
                browser.run(script, path, values)
                browser.until(lambda: browser.all("[data-flash]") or None, "the form was taken")
                browser.open(f"/credits?tenant={tenant}")
    tasks = {task["title"]: task["id"] for task in house.controller.get("/api/v1/tasks?limit=1000")["items"]}
    until(lambda: house.controller.get("/api/v1/telemetry")["items"], "something is measured")
    return tasks


async def _charge(house: House) -> None:
    """What these tenants might have used in the hour before: facts of a node that was lost."""
    bus = await connect(house.nats.url, name="history")
    tasks = {task["title"]: task["id"] for task in house.controller.get("/api/v1/tasks?limit=1000")["items"]}
    minute, serial = int(time.time()) // 60, 0
    facts: list[Event] = []
    for back in range(58, 1, -1):
        first, charged_ns = serial + 1, 0
        for number, (tenant, titles) in enumerate(_MODELS.items()):
            for share, title in enumerate(titles):
                serial += 1
                from_ns = (minute - back) * 60 * 10**9
                busy = 1.4 + math.sin(back / 9 + 2 * number + share) + 0.3 * math.sin(back / 2)
                core_ns, byte_ms = int(max(0.1, busy) * 10**9), int((1 + share) * 4e12 * (1.5 + math.sin(back / 17 + number)))
                usage = (from_ns, from_ns + 60 * 10**9, core_ns, byte_ms, core_ns // 9, 40 + back % 7)
                facts.append(UsageRecorded("atlas", 0, 0, serial, f"past-{title}", tenant, tasks.get(title, ""), number, *usage))
                charged_ns += core_ns
        wall_ns, scheduler_ns = 60 * 10**9, charged_ns // 3
        accounts = (from_ns, wall_ns, 2, charged_ns, scheduler_ns, 2 * wall_ns - charged_ns - scheduler_ns, first, serial, 3 * charged_ns)
        facts.append(DeviceAccounted("atlas", 0, 0, 59 - back, *accounts))
    await bus.publish_events("usage", "atlas", facts)
    await bus.close()


def pages(tasks: dict[str, str]) -> dict[str, str]:
    """Name of the picture -> address."""
    return {
        "dashboard": "/",
        "tasks": "/tasks",
        "task": f"/tasks?open={tasks['chat-7b serving']}",
        "ran": f"/tasks/{tasks['chat-7b serving']}/ran",
        "waiting": f"/tasks/{tasks['pretraining restart']}",
        "submit": "/tasks/new",
        "nodes": "/nodes",
        "node": "/nodes/atlas",
        "groups": "/groups",
        "credits": "/credits",
        "utilization": "/utilization",
        "settings": "/settings",
        "tiers": "/settings/tiers",
        "keys": "/settings/keys",
        "users": "/settings/users",
        "audit": "/settings/audit",
        "login": "/login",
    }


def picture(browser: Chrome, path: str, theme: str, size: tuple[int, int, int]) -> bytes:
    """The page as PNG: as high as it is, within bounds."""
    width, least, most = size
    browser.scheme(theme)
    browser.resize(width, least)
    browser.open(path)
    browser.until(lambda: not browser.run("return document.body.innerText.includes('Reading the journal')") or None, "the page is whole")
    browser.driver.execute_async_script(_SETTLE)
    height = int(browser.run("return document.documentElement.scrollHeight"))
    browser.resize(width, min(most, max(least, height)))
    browser.driver.execute_async_script(_SETTLE)
    return browser.screenshot()


def small(reader: Chrome, png: bytes) -> bytes:
    """The same picture in fewer bytes: the browser decodes it, we write it anew."""
    width, height, text = reader.driver.execute_async_script(_READ, base64.b64encode(png).decode())
    pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)[..., :3]
    return palette_png(pixels)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description="Pictures of every page.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("only", nargs="*", help="names of pages (default: all)")
    options = parser.parse_args()
    if MISSING:
        raise SystemExit(MISSING)
    options.out.mkdir(parents=True, exist_ok=True)
    total = 0
    with House(history=True, CONTROLLER_NODE_LEASE_MS="120000") as house:
        wanted: dict[str, Any] = {name: path for name, path in pages(live_in(house)).items() if not options.only or name in options.only}
        strict = Controller(house.nats.url, house.folder, WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=make_key().text)
        strict.start()  # a second one beside the first, that asks who one is
        with Chrome("") as browser, Chrome("about:blank") as reader:
            reader.open("")
            for name, path in wanted.items():
                browser.base = strict.url if name == "login" else house.url
                for theme in ("light", "dark"):
                    for size in _WIDTHS:
                        data = small(reader, picture(browser, path, theme, size))
                        (options.out / f"{name}-{size[0]}-{theme}.png").write_bytes(data)
                        total += len(data)
        strict.stop()
    print(f"{len(wanted) * 4} pictures, {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
