"""Commands without a stack: versions, WIS tools, the doctor, and errors of one line."""

from __future__ import annotations

import http.server
import importlib.metadata
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest

from services.kit.keyring import Authority
from tests.support.command import Wooly
from wooly import __version__
from wooly.cli import services
from wooly.cli.group import COMMANDS, CommandError
from wooly.cli.output import bytes_text

PROGRAM = """wis 1
scalars 1
%0 external 128
%1 created 16
%1:f32[4,1]{1,1}+0 = sum %0:f32[4,8]{8,1}+0
"""


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_help_lists_every_command(wooly: Wooly) -> None:
    found = wooly("--help")
    assert found.returncode == 0
    for name, (_, _, text) in COMMANDS.items():
        assert f"  {name} " in found.stdout and text in found.stdout
        assert wooly(name, "--help").returncode == 0


def test_versions(wooly: Wooly) -> None:
    assert wooly("version").stdout.splitlines()[0] == f"wooly {__version__}" == wooly("--version").stdout.strip().replace(", version", "")
    assert json.loads(wooly("version", "--json").stdout)["torch"] == importlib.metadata.version("torch")


def test_unknown_commands_and_options(wooly: Wooly) -> None:
    assert wooly("fly").returncode == 2 and "No such command 'fly'" in wooly("fly").stderr
    assert wooly("nodes", "--fast").returncode == 2
    assert wooly("credits", "--by", "colour").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (("ping",), {}, "no bus is named: set WOOLY_NATS_URL, or use --nats-url"),
        (("ping", "--nats-url", "nats://127.0.0.1:1"), {}, "no NATS server answers at nats://127.0.0.1:1"),
        (("ping",), {"WOOLY_NATS_URL": "nats://alice:secret@127.0.0.1:1"}, "no NATS server answers at nats://***@127.0.0.1:1"),
        (("nodes", "--controller", "http://127.0.0.1:1"), {}, "the controller at http://127.0.0.1:1 does not answer"),
        (("tasks",), {"CONTROLLER_URL": "http://127.0.0.1:1"}, "the controller at http://127.0.0.1:1 does not answer"),
        (("credits",), {"WOOLY_BILLING_URL": "http://127.0.0.1:1"}, "the billing service at http://127.0.0.1:1 does not answer"),
        (("billing", "verify", "--billing", "127.0.0.1"), {}, "--billing '127.0.0.1' is not a URL"),
        (("nodes",), {"CONTROLLER_URL": "controller"}, "CONTROLLER_URL='controller' (from the environment) is not allowed"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(wooly: Wooly, arguments: tuple[str, ...], environ: dict[str, str], says: str) -> None:
    found = wooly(*arguments, **environ)
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr.startswith("wooly: ") and says in found.stderr and found.stderr.count("\n") == 1


def test_another_server_at_the_address(wooly: Wooly) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(60)
        import threading

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        found = wooly("tasks", "--controller", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert found.returncode == 2 and "is no controller of this version" in found.stderr


# --- WIS


def test_wis_round_trip(wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(PROGRAM)
    assert wooly("wis", "asm", "p.txt", "-o", "p.wis").returncode == 0
    assert (tmp_path / "p.wis").read_bytes()[:1] != b"w"
    text = wooly("wis", "dis", "p.wis").stdout
    assert [line.split() for line in text.splitlines()] == [line.split() for line in PROGRAM.splitlines()]
    piped = wooly("wis", "dis", "-", stdin=(tmp_path / "p.wis").read_bytes())
    assert piped.stdout == text
    assert wooly("wis", "verify", "p.wis").stdout == wooly("wis", "verify", "-", stdin=PROGRAM).stdout
    assert wooly("wis", "verify", "p.wis").stdout.startswith("ok ")


def test_wis_findings_stand_in_the_text(wooly: Wooly) -> None:
    broken = PROGRAM.replace("[4,8]{8,1}", "[4,9]{9,1}")
    found = wooly("wis", "verify", "-", stdin=broken)
    assert found.returncode == 2 and "; error: [" in found.stdout and "the program breaks 1 rule" in found.stderr
    as_json = json.loads(wooly("wis", "verify", "-", "--json", stdin=broken).stdout)
    assert as_json["ok"] is False and len(as_json["findings"]) == 1


@pytest.mark.parametrize(
    ("command", "data", "says"),
    [
        ("dis", b"\x00\xff\x10", "wooly: "),
        ("asm", b"wis 1\nscalars x\n", "line"),
        ("verify", b"wis 1\nscalars 0\n%0 external ?\n", "has no sizes"),
    ],
)
def test_wis_bad_input(wooly: Wooly, command: str, data: bytes, says: str) -> None:
    found = wooly("wis", command, "-", stdin=data)
    assert found.returncode == 2 and says in found.stderr and "Traceback" not in found.stderr


def test_wis_names_the_compiler_for_source_code(wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(float *a) { a[0] = 1; }')
    found = wooly("wis", "stats", str(tmp_path / "k.cu"))
    assert found.returncode == 2 and f"wooly wis compile {tmp_path / 'k.cu'}" in found.stderr


def test_up_names_every_backend(wooly: Wooly) -> None:
    text = wooly("up", "--help").stdout
    assert all(name in text for name in ("host", "opencl", "cuda", "reference"))


# --- the command's own form


@pytest.mark.parametrize(
    ("shell", "line"), [("bash", "complete -o nosort -F"), ("zsh", "#compdef wooly"), ("fish", "complete --no-files --command wooly")]
)
def test_completion_prints_the_script_of_the_shell(wooly: Wooly, shell: str, line: str) -> None:
    found = wooly("completion", shell)
    assert found.returncode == 0 and line in found.stdout and "_WOOLY_COMPLETE" in found.stdout


def test_completion_completes_commands(wooly: Wooly) -> None:
    found = wooly(_WOOLY_COMPLETE="bash_complete", COMP_WORDS="wooly compl", COMP_CWORD="1")
    assert found.stdout == "plain,completion\n"


def test_a_mistyped_command_is_corrected(wooly: Wooly) -> None:
    found = wooly("taks")
    assert found.returncode == 2 and "No such command 'taks'. Did you mean 'tasks'?" in found.stderr
    assert "Did you mean" not in wooly("xyzzy").stderr


def test_the_version_has_a_short_flag(wooly: Wooly) -> None:
    assert wooly("-V").stdout == wooly("--version").stdout != ""


# --- the doctor


def test_the_doctor_without_a_bus(wooly: Wooly) -> None:
    found = wooly("doctor")
    assert found.returncode == 2 and "wooly: 1 check failed: bus" in found.stderr
    assert "ok    torch: " in found.stdout and "ok    entry point: " in found.stdout and "ok    configuration: " in found.stdout
    layers = (
        ("no user of its own: ", "user 61183"),
        ("network namespace",),
        ("cgroup limit of memory",),
        ("seccomp",),
    )  # each holds, or why not
    assert all(any(layer in found.stdout for layer in names) for names in layers)
    assert "FAIL  bus: WOOLY_NATS_URL is not set" in found.stdout and "fix: set WOOLY_NATS_URL" in found.stdout


def test_the_doctor_names_what_is_wrong(wooly: Wooly) -> None:
    environ = {
        "WOOLY_NATS_URL": f"nats://user:secret@127.0.0.1:{closed_port()}",
        "CONTROLLER_URL": f"http://127.0.0.1:{closed_port()}",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "WOOLY_CPU_FALLBACK": "0",
    }
    found = wooly("doctor", "--json", **environ)
    states = {finding["name"]: finding for finding in json.loads(found.stdout)}
    failed = {name for name, finding in states.items() if finding["state"] == "fail"}
    assert failed == {"entry point", "bus", "controller"}
    assert all(states[name]["fix"] for name in failed) and states["configuration"]["state"] == "ok"
    assert "off (WOOLY_CPU_FALLBACK=0)" in states["CPU fallback"]["text"]


def test_the_doctor_goes_on_after_a_configuration_with_which_no_script_starts(wooly: Wooly) -> None:
    found = wooly("doctor", "--json", WOOLY_QUEUE="1")
    states = {finding["name"]: finding for finding in json.loads(found.stdout)}
    assert states["configuration"]["state"] == "fail" and "WOOLY_QUEUE='1'" in states["configuration"]["text"]
    assert "bus" in states


def test_the_doctor_goes_on_when_the_authorities_cannot_be_read(wooly: Wooly) -> None:
    at = f"127.0.0.1:{closed_port()}"
    found = wooly("doctor", "--json", WOOLY_NATS_URL=f"tls://{at}", CONTROLLER_URL=f"https://{at}", WOOLY_TLS_CA="/absent.pem")
    failed = {finding["name"]: finding for finding in json.loads(found.stdout) if finding["state"] == "fail"}
    assert failed.keys() == {"bus", "controller"} and all("WOOLY_TLS_CA=/absent.pem" in finding["text"] for finding in failed.values())


def test_the_doctor_asks_for_the_authority_of_a_certificate_that_is_not_trusted(wooly: Wooly, tmp_path: Path) -> None:
    Authority.load_or_make(tmp_path / "ca").issue(tmp_path, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = wooly("doctor", "--json", CONTROLLER_URL=f"https://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    (fix,) = [finding["fix"] for finding in json.loads(found.stdout) if finding["name"] == "controller"]
    assert fix.startswith("set WOOLY_TLS_CA to ")


def test_the_doctor_stops_at_an_unreadable_configuration(wooly: Wooly) -> None:
    found = wooly("doctor", "--json", PRIO="9")
    assert json.loads(found.stdout)[-1]["name"] == "configuration" and found.returncode == 2


# --- parts


def test_a_missing_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.missing_server_parts() == []
    requires = ["msgspec>=0.20", "no-such-part>=1", "other ; extra == 'cuda'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    assert services.missing_server_parts() == ["no-such-part"]
    with pytest.raises(
        CommandError, match=r"needs the platform \(not installed: no-such-part\); run `pip install ./wooly_server` in a checkout"
    ):
        services.require_server()


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8.0 GiB"), (3 << 50, "3072.0 TiB")]
)
def test_bytes_for_people(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text
