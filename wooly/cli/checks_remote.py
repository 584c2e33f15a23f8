"""Checks of the services that this machine uses: bus, nodes, controller, billing, and clock differences."""

from __future__ import annotations

import email.utils
import json
import time
import urllib.error
from collections.abc import Iterator
from typing import Final

from wooly.cli.bus import discover
from wooly.cli.checks import Finding
from wooly.cli.login import described
from wooly.config import Config
from wooly.errors import ConfigError, NoServerError
from wooly.rest import Credentials, detail_of, open_url

__all__ = ["bus", "controller", "login"]

_WAIT_S: Final = 1.0
_HTTP_S: Final = 5.0
_SKEW_S: Final = 5.0
_NO_LOGIN: Final = "local"


def bus(config: Config) -> Iterator[Finding]:
    """Does the bus answer, and is a node on it?"""
    if not config.nats_urls:
        fix = "set WOOLY_NATS_URL (an operator knows the address), or try `wooly run --embedded script.py`"
        yield Finding("bus", "fail", "WOOLY_NATS_URL is not set, so the device stays off", fix)
        return
    try:
        found = discover(config.nats_urls, _WAIT_S)
    except NoServerError as error:
        yield Finding("bus", "fail", str(error), "start the bus, or correct WOOLY_NATS_URL")
        return
    yield Finding("bus", "ok", f"answers at {', '.join(_without_password(url) for url in config.nats_urls)}")
    if not found:
        yield Finding("nodes", "fail", "the bus answers, but no node is on it", "start one with `wooly server`")
        return
    yield Finding("nodes", "ok", ", ".join(f"{node.name} ({seconds * 1e3:.0f} ms)" for node, seconds in found))
    if config.gpus:
        most = max(len(node.devices) for node, _ in found)
        wrong = [index for index in config.gpus if index >= most]
        if wrong:
            yield Finding("GPUS", "fail", f"names device {wrong[0]}, but no node has more than {most}", "correct GPUS")


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//***@{tail}" if at else url


def controller(config: Config) -> Iterator[Finding]:
    """Do the services that are configured answer, and do their clocks agree with ours?"""
    for name, base in (("controller", config.controller_url), ("billing", config.billing_url)):
        if not base:
            continue
        try:
            with open_url(base.rstrip("/") + "/health", Credentials(tls_ca=config.tls_ca), timeout_s=_HTTP_S) as answer:
                date = answer.headers.get("Date")
        except (OSError, ValueError) as error:
            code = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
            yield Finding(
                name, "fail", f"{base} does not answer its health check ({code})", f"start it, or correct the address of the {name}"
            )
            continue
        yield Finding(name, "ok", f"{base} is healthy")
        if date:
            yield _clock(name, date)
        if name == "controller":
            yield login(config)


def login(config: Config) -> Finding:
    """Does the controller know who we are?"""
    url = config.controller_url.rstrip("/") + "/api/v1/session"
    fix = "`wooly login`" if not config.api_key else f"`wooly login` (the key is {config.origin['WOOLY_API_KEY']})"
    try:
        with open_url(url, Credentials.of(config), timeout_s=_HTTP_S) as answer:
            who = json.loads(answer.read())
            return Finding("login", "ok", described(who) if who.get("name") != _NO_LOGIN else "the controller needs no login")
    except urllib.error.HTTPError as error:
        return Finding("login", "fail", f"the controller says: {detail_of(error)}", fix)
    except ConfigError as error:
        return Finding("login", "fail", str(error), "use an address that begins with https://")
    except (OSError, ValueError) as error:
        return Finding("login", "fail", f"{url} does not answer ({getattr(error, 'reason', error)})", "look at the controller's log")


def _clock(name: str, date: str) -> Finding:
    skew_s = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    if abs(skew_s) > _SKEW_S:
        return Finding("clock", "warn", f"this machine is {skew_s:+.0f} s off the {name}'s clock", "synchronise the clocks (NTP)")
    return Finding("clock", "ok", f"agrees with the {name}'s")
