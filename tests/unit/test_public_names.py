"""What users import and read: the package's names, its counters, its two lines on standard error."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import wooly
from bus_schemas.session import DeviceInfo, NodeInfo, SessionClosed, SessionOpened
from wooly import errors, progress
from wooly.link import Flush, ReadBytes, Ticket


def session(**changes: object) -> SessionOpened:
    devices = tuple(DeviceInfo(index, f"Device {index}", "host", 4, 8 << 30, 8 << 30) for index in range(2))
    node = NodeInfo("node-1", "rack-7", "10.0.0.7", 1, devices, ())
    return SessionOpened(**{"session": "s", "epoch": 1, "node": node, **changes})  # type: ignore[arg-type]


def test_the_public_names() -> None:
    assert sorted(wooly.__all__) == ["RawKernel", "RawModule", "__version__", "errors", "stats"]
    assert set(wooly.stats()) >= {"ops", "batches", "waits", "wire_bytes", "fallbacks"}


def test_importing_wooly_imports_nothing_heavy() -> None:
    code = "import sys, wooly; print(wooly.stats()['ops'], [m for m in ('torch', 'nats', 'numpy', 'click', 'msgspec') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0 []\n"


def test_every_error_is_a_runtime_error_under_one_root() -> None:
    tree = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(tree) > 10 and all(issubclass(kind, errors.WoolyError) for kind in tree) and issubclass(errors.WoolyError, RuntimeError)
    assert issubclass(errors.UnsupportedOperation, NotImplementedError)


def test_only_a_subclass_can_stand_for_an_error() -> None:
    with pytest.raises(TypeError, match="NodeLostError is not a QuotaExceeded"):
        errors.present(errors.QuotaExceeded, errors.NodeLostError)


def test_the_opening_line_names_node_gpu_and_payer() -> None:
    assert progress.opened_text(session(gpus=(1,)), "team-a") == "wooly: node rack-7, GPU 1 (Device 1), tenant team-a"
    assert progress.opened_text(session(), "team-a") == "wooly: node rack-7, GPU 0 (Device 0), tenant team-a"


def test_the_closing_line_says_what_was_used() -> None:
    totals = SessionClosed("s", core_ns=1_500_000_000, byte_ms=3 << 39, launches=12)
    assert progress.closed_text(totals, 9.96) == "wooly: 10.0 s, 12 launches, 1.5 core-seconds, 1.54 GiB-seconds"
    small = SessionClosed("s", core_ns=2_500_000, byte_ms=0, launches=1)
    assert progress.closed_text(small, 1.0, "credits: 2 core, 1 VRAM") == (
        "wooly: 1.0 s, 1 launches, 2.5 core-milliseconds, 0 GiB-seconds; credits: 2 core, 1 VRAM"
    )


def test_a_billing_service_that_is_away_costs_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress.closed(SessionClosed("s"), 0.0, "http://127.0.0.1:1", "task-1")
    progress.closed(None, 0.0)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("wooly: ") and "credits" not in first and "`wooly credits`" in second


class _Link:
    """A link that answers every read with its length in zeros."""

    info = session()
    wire_bytes = 0
    closed = False

    def submit(self, flush: Flush) -> Ticket:
        self.wire_bytes += 100
        return Ticket(1)

    def report(self) -> None:
        """Nothing is refused."""

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        return [b"\0\0"]

    def close(self) -> None:
        self.closed = True


def test_the_verbose_link_passes_everything_through(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("wooly")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.DEBUG)
    try:
        plain = _Link()
        link = progress.VerboseLink(plain)
        assert link.wait(link.submit(Flush(n_ops=3, reads=[(1, 0, 2)]))) == [b"\0\0"]
        link.close()
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(logging.NOTSET)
    assert plain.closed and link.wire_bytes == 100 and link.info is plain.info
    assert "batch 1: 3 operations" in caplog.text and "1 reads; 100 bytes sent" in caplog.text
