"""Audit records at a syslog daemon: every one arrives, over restarts of the daemon and of controllers, from one controller at a time."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from services.controller.syslog import Syslog
from services.kit.errors import SettingError
from tests.support.plane import Controller, Plane

LINE = re.compile(rb"<(\d+)>1 \d{4}-\d\d-\d\dT[\d:.]+Z \S+ wooly - audit - (\{.*\})", re.DOTALL)


def daemon(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(str(path))
    found.settimeout(60)
    return found


def received(sock: socket.socket, until: str) -> list[dict[str, Any]]:
    """The records that arrive, up to the one about ``until``."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["target"] != until:
        match = LINE.fullmatch(sock.recv(1 << 16))
        assert match is not None and match[1] == b"86", "authpriv.info"
        found.append(json.loads(match[2]))
    return found


def make(controller: Controller, tenant: str) -> None:
    assert controller.ask("POST", "/api/v1/tenants", {"id": tenant}).status == 201


def test_every_record_reaches_the_daemon_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Plane(tmp_path / "plane", WOOLY_AUDIT_SYSLOG=str(path)) as plane:
        make(plane.controller, "before-the-daemon")
        with daemon(path) as first:
            make(plane.controller, "one")
            assert [one["target"] for one in received(first, "one")] == ["before-the-daemon", "one"]
        make(plane.controller, "while-it-is-down")
        with daemon(path) as second:
            assert received(second, "while-it-is-down")[-1] == plane.controller.get("/api/v1/audit?limit=1")["items"][0]
            (tmp_path / "other").mkdir()
            other = Controller(plane.nats.url, tmp_path / "other", **plane.environment)
            other.start()
            try:
                make(other, "by-another")
                assert [one["target"] for one in received(second, "by-another")] == ["by-another"], "one controller sends"
                plane.controller.stop()
                make(other, "after-the-change")
                later = {one["target"] for one in received(second, "after-the-change")}
                assert later <= {"by-another", "after-the-change"}, "from where the first was"
            finally:
                other.stop()
                plane.controller.start()


def test_records_go_over_udp_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(60)
        with Plane(tmp_path, WOOLY_AUDIT_SYSLOG=f"127.0.0.1:{sock.getsockname()[1]}") as plane:
            make(plane.controller, "acme")
            assert received(sock, "acme")[0]["action"] == "tenant.write"


@pytest.mark.parametrize(("text", "problem"), [("dev/log", "host:port"), ("192.0.2.1:514", "in plain text")])
def test_an_unusable_address_says_so(text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        Syslog.from_environment({"WOOLY_AUDIT_SYSLOG": text}, *[NotImplemented] * 3)
