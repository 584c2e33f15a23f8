"""``wooly slurm``: the files of the Slurm integration, and what Slurm's own configuration lacks for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

import click

from wooly import config as configuration
from wooly.cli.group import CommandError, echo
from wooly.shared.files import write_atomically

__all__ = ["missing_settings", "slurm"]

_SCRIPTS: Final = {"burst_buffer.lua": 0o644, "wooly_job_submit.lua": 0o644, "wooly_taskprolog.sh": 0o755, "wooly_epilog.sh": 0o755}
_MARK: Final = "Wooly for Slurm"
_VERSION_MIN: Final = (21, 8)
"""The first Slurm with burst_buffer/lua."""
_BURST_BUFFER: Final = {"Directive": "WOOLY", "StageInTimeout": "2073600", "Flags": "TeardownFailure"}
"""StageInTimeout: seconds that a job may wait for its place, 24 days, the most that Slurm allows."""
_PASSED_ON: Final = ("CONTROLLER_URL", "WOOLY_NATS_URL", "WOOLY_TLS_CA", "WOOLY_INSECURE")


@click.group()
def slurm() -> None:
    """Reservations for the jobs of a Slurm cluster."""


@slurm.command()
@click.option("--prefix", type=click.Path(file_okay=False), default="/etc/slurm", show_default=True, help="The folder of slurm.conf.")
@click.option("--key-file", type=click.Path(dir_okay=False), default="", help="A file with an API key that SlurmUser alone can read.")
@click.option("--check", is_flag=True, help="Write nothing; say what is missing.")
def install(prefix: str, key_file: str, check: bool) -> int:
    """Write the hooks and wooly.conf beside slurm.conf, and print what has to be added to Slurm's own files.

    CONTROLLER_URL, WOOLY_NATS_URL and WOOLY_TLS_CA, as this command finds them, go into a new wooly.conf. The same command again replaces
    the hooks and keeps wooly.conf. Exit code 1: something is missing."""
    folder = Path(prefix).absolute()
    if not folder.is_dir():
        raise CommandError(f"{folder} is not a folder; name that of slurm.conf by --prefix")
    if not check:
        _write_files(folder, key_file)
    missing = [
        *_wrong_files(folder),
        *missing_settings(*(_text(folder / name) for name in ("slurm.conf", "burst_buffer.conf", "wooly.conf"))),
    ]
    for line in missing:
        echo(line)
    if _settings(_text(folder / "slurm.conf")).get("taskprolog") != f"{folder}/wooly_taskprolog.sh":
        echo("for jobs with USE_WOOLY=1 and the GRES woolyai_vram, optional; add to slurm.conf:")
        echo(f"  JobSubmitPlugins=lua\n  GresTypes=woolyai_vram\n  TaskProlog={folder}/wooly_taskprolog.sh")
    echo(f"{folder} is not complete; after the changes restart slurmctld" if missing else f"{folder} is complete")
    return 1 if missing else 0


def missing_settings(slurm_conf: str, burst_buffer_conf: str, wooly_conf: str) -> list[str]:
    """What is to be changed, by the texts of the configuration files; empty: nothing."""
    slurm_has, burst_has, wooly_has = _settings(slurm_conf), _settings(burst_buffer_conf), _settings(wooly_conf)
    out = []
    if slurm_has.get("burstbuffertype") != "burst_buffer/lua":
        out.append("add to slurm.conf: BurstBufferType=burst_buffer/lua")
    out += [
        f"add to burst_buffer.conf: {name}={value}"
        for name, value in _BURST_BUFFER.items()
        if value.lower() not in burst_has.get(name.lower(), "").lower().split(",")
    ]
    if "controller_url" not in wooly_has:
        out.append("add to wooly.conf: CONTROLLER_URL = http://controller:8080 (the address of the controller)")
    by_account = any(name.startswith("tenant.account.") for name in wooly_has)
    if by_account and "associations" not in slurm_has.get("accountingstorageenforce", "").lower():
        out.append(
            "wooly.conf maps accounts to tenants, and users choose their account freely: add to slurm.conf "
            "AccountingStorageEnforce=associations (needs slurmdbd), or map users"
        )
    return out


def _write_files(folder: Path, key_file: str) -> None:
    plugin = folder / "burst_buffer.lua"
    if plugin.exists() and _MARK not in _text(plugin):
        raise CommandError(f"{plugin} belongs to another burst buffer, and Slurm loads one; move it away to use reservations")
    try:
        for name, mode in _SCRIPTS.items():
            _write(folder / name, (resources.files("wooly") / "slurm" / name).read_text(), mode)
        for name, text in (
            ("job_submit.lua", f'dofile("{folder}/wooly_job_submit.lua")\n'),
            ("burst_buffer.conf", "".join(f"{name}={value}\n" for name, value in _BURST_BUFFER.items())),
            ("wooly.conf", "".join(_first_settings(folder, key_file))),
        ):
            if not (folder / name).exists():
                _write(folder / name, text, 0o644)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written ({error.strerror}); run this as root, or name another folder") from None


def _write(path: Path, text: str, mode: int) -> None:
    write_atomically(path, text.encode(), mode=mode)
    path.chmod(mode)  # also under a umask that hides files from SlurmUser
    echo(f"wrote {path}")


def _first_settings(folder: Path, key_file: str) -> Iterator[str]:
    """The lines of a new wooly.conf."""
    found = configuration.load(task=False)
    known = {
        "CONTROLLER_URL": found.controller_url,
        "WOOLY_NATS_URL": ",".join(found.nats_urls),
        "WOOLY_TLS_CA": found.tls_ca,
        "WOOLY_INSECURE": "1" if found.insecure else "",
    }
    beside = Path(sys.executable).with_name("wooly")
    yield f"# {_MARK}: settings of the hooks. Names of capitals are variables of the client. No secrets: every user may read this file.\n"
    yield f"wooly = {beside if beside.exists() else shutil.which('wooly') or 'wooly'}\n"
    yield f"cluster = {_settings(_text(folder / 'slurm.conf')).get('clustername', 'slurm')}\n"
    yield f"key_file = {os.path.abspath(key_file)}\n" if key_file else "# key_file = /etc/slurm/wooly.key\n"
    yield "# seconds that a reservation is held without a session\nterm_s = 3600\n"
    yield "# who pays: the first that is there of tenant.account.ACCOUNT, tenant.user.USER, tenant\n# tenant.user.alice = acme\n"
    yield from (f"{name} = {known[name]}\n" for name in _PASSED_ON if known[name])


def _wrong_files(folder: Path) -> Iterator[str]:
    """What is wrong with the files of ``folder``, its Slurm and its key."""
    for name in _SCRIPTS:
        path = folder / name
        if _text(path) != (resources.files("wooly") / "slurm" / name).read_text():
            yield f"{path} is {'of another version' if path.exists() else 'missing'}: run `wooly slurm install --prefix {folder}`"
    if "wooly_job_submit.lua" not in _text(folder / "job_submit.lua"):
        yield f'add at the end of {folder}/job_submit.lua: dofile("{folder}/wooly_job_submit.lua")'
    version = _slurm_version()
    if version is None:
        yield "Slurm's version is not known: slurmctld is not installed on this machine"
    elif version < _VERSION_MIN:
        yield f"Slurm {version[0]}.{version[1]:02} has no burst_buffer/lua: install 21.08 or newer"
    key_file = _settings(_text(folder / "wooly.conf")).get("key_file")
    if key_file:
        try:
            if os.stat(key_file).st_mode & 0o077:
                yield f"others can read the key: chmod 600 {key_file}"
        except OSError as error:
            yield f"{key_file} cannot be read ({error.strerror}): store a key there, for SlurmUser alone"


def _slurm_version() -> tuple[int, int] | None:
    try:
        said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"slurm\S* (\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def _settings(text: str) -> dict[str, str]:
    """Lines ``Name=value`` by lower-case names; the last of a name. Comments begin with ``#``."""
    pairs = (line.split("#")[0].partition("=") for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals and value.strip()}


def _text(path: Path) -> str:
    """Empty when there is no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
