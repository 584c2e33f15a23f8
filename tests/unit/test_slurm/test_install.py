"""``wooly slurm install`` into a folder of slurm.conf."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Wooly, command_in
from tests.support.stack import ROOT
from wooly.cli.slurm import missing_settings

COMPLETE = (
    "BurstBufferType=burst_buffer/lua\n",
    "Directive=WOOLY\nStageInTimeout=2073600\nFlags=TeardownFailure\n",
    "CONTROLLER_URL = http://c:1\n",
)


@pytest.fixture
def wooly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wooly:
    """With a slurmctld that says its version."""
    path = tmp_path / "bin/slurmctld"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return command_in(tmp_path)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "slurm.conf").write_text("ClusterName=lab  # ours\n")
    return folder


def test_the_files_are_written_and_slurms_own_left_alone(wooly: Wooly, etc: Path) -> None:
    first = wooly("slurm", "install", "--prefix", str(etc), CONTROLLER_URL="https://c:1", WOOLY_NATS_URL="tls://b:4222")
    assert first.returncode == 1, first.stderr
    assert "add to slurm.conf: BurstBufferType=burst_buffer/lua\n" in first.stdout
    assert f"  TaskProlog={etc}/wooly_taskprolog.sh\n" in first.stdout
    written = {path.name: path.read_text() for path in etc.iterdir()}
    assert written["slurm.conf"] == "ClusterName=lab  # ours\n"
    assert written["burst_buffer.lua"] == (ROOT / "wooly/slurm/burst_buffer.lua").read_text()
    assert written["job_submit.lua"] == f'dofile("{etc}/wooly_job_submit.lua")\n'
    for line in ("cluster = lab", "CONTROLLER_URL = https://c:1", "WOOLY_NATS_URL = tls://b:4222", "term_s = 3600"):
        assert f"{line}\n" in written["wooly.conf"]
    with (etc / "slurm.conf").open("a") as file:
        file.write(f"BurstBufferType=burst_buffer/lua\nTaskProlog={etc}/wooly_taskprolog.sh\n")
    with (etc / "wooly.conf").open("a") as file:
        file.write("tenant.user.alice = acme\n")
    (etc / "burst_buffer.lua").write_text("-- Wooly for Slurm, of an earlier version\n")
    check = wooly("slurm", "install", "--prefix", str(etc), "--check")
    assert (check.returncode, check.stdout.count("\n")) == (1, 2) and "burst_buffer.lua is of another version: run" in check.stdout
    assert (etc / "burst_buffer.lua").read_text() == "-- Wooly for Slurm, of an earlier version\n"
    again = wooly("slurm", "install", "--prefix", str(etc), CONTROLLER_URL="https://other:1")
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, f"{etc} is complete"), again.stdout
    assert (etc / "burst_buffer.lua").read_text() == written["burst_buffer.lua"]
    assert (etc / "wooly.conf").read_text() == written["wooly.conf"] + "tenant.user.alice = acme\n"


def test_files_of_the_site_stay(wooly: Wooly, etc: Path) -> None:
    (etc / "job_submit.lua").write_text("function slurm_job_submit() return 0 end\n")
    done = wooly("slurm", "install", "--prefix", str(etc), CONTROLLER_URL="http://c:1")
    assert f'add at the end of {etc}/job_submit.lua: dofile("{etc}/wooly_job_submit.lua")' in done.stdout
    assert (etc / "job_submit.lua").read_text() == "function slurm_job_submit() return 0 end\n"
    (etc / "burst_buffer.lua").write_text("-- of DataWarp\n")
    done = wooly("slurm", "install", "--prefix", str(etc), CONTROLLER_URL="http://c:1")
    assert done.returncode == 2 and "belongs to another burst buffer, and Slurm loads one" in done.stderr
    assert (etc / "burst_buffer.lua").read_text() == "-- of DataWarp\n"
    nowhere = wooly("slurm", "install", "--prefix", str(etc / "none"))
    assert nowhere.returncode == 2 and "name that of slurm.conf by --prefix" in nowhere.stderr


def test_a_key_that_others_can_read_is_reported(wooly: Wooly, etc: Path) -> None:
    key = etc / "key"
    arguments = ("slurm", "install", "--prefix", str(etc), "--key-file", str(key))
    assert f"{key} cannot be read (No such file or directory)" in wooly(*arguments, CONTROLLER_URL="http://c:1").stdout
    key.write_text("wk_x")
    key.chmod(0o640)
    assert f"others can read the key: chmod 600 {key}" in wooly(*arguments).stdout
    key.chmod(0o600)
    assert "key" not in wooly(*arguments).stdout.replace(str(etc), "").replace("wrote", "")


@pytest.mark.parametrize(
    ("texts", "missing"),
    [
        (COMPLETE, []),
        (("", *COMPLETE[1:]), ["add to slurm.conf: BurstBufferType=burst_buffer/lua"]),
        (("burstbuffertype = Burst_Buffer/Lua", *COMPLETE[1:]), ["add to slurm.conf: BurstBufferType=burst_buffer/lua"]),
        (
            (COMPLETE[0], "Directive=WOOLY\nFlags=DisablePersistent,TeardownFailure\n", COMPLETE[2]),
            ["add to burst_buffer.conf: StageInTimeout=2073600"],
        ),
        (
            (*COMPLETE[:2], "#CONTROLLER_URL = x"),
            ["add to wooly.conf: CONTROLLER_URL = http://controller:8080 (the address of the controller)"],
        ),
    ],
)
def test_missing_settings_are_named(texts: tuple[str, str, str], missing: list[str]) -> None:
    assert missing_settings(*texts) == missing


def test_accounts_decide_tenants_only_where_slurm_checks_them() -> None:
    slurm, burst, wooly = COMPLETE
    (warned,) = missing_settings(slurm, burst, wooly + "tenant.account.physics = phys\n")
    assert "users choose their account freely" in warned and "AccountingStorageEnforce=associations" in warned
    assert not missing_settings(slurm + "AccountingStorageEnforce=associations,limits\n", burst, wooly + "tenant.account.physics = phys\n")
