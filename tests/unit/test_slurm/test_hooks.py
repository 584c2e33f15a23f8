"""The Lua hooks in the interpreters that Slurm is built with. Where they call commands, stand-ins write down what they were given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lupa.lua51
import lupa.lua54
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stack import ROOT

HOOKS = ROOT / "wooly/slurm"
HOSTILE = "n'; touch hacked; echo '\"$(touch hacked)`touch hacked` \\ --tenant=other"
RUNTIMES = {"5.1": lupa.lua51.LuaRuntime, "5.4": lupa.lua54.LuaRuntime}
Call = Callable[..., Any]


POPEN = """
function io.popen(command)
    local lines, count = shell(command), 0
    local function following()
        count = count + 1
        return lines[count]
    end
    return {lines = function() return following end, close = function() end}
end
"""
"""The interpreters of lupa are built without it."""


HOOK_PROCESS = """
import os, subprocess, sys
pipe = os.pipe() if sys.argv[1] == "True" else ()
sys.exit(subprocess.run(["sh", "-c", sys.argv[2]]).returncode)
"""
"""The process that a hook's commands have as their parent: with both ends of a pipe, or without. This one, which stands for slurmscriptd,
may have pipes of other tests."""


def runtime(version: str, file: Path, *, holding: bool = False, **slurm: Any) -> Any:
    """An interpreter that has loaded a hook. ``holding``: the hook's process has the pipe of another job."""
    lua = RUNTIMES[version](unpack_returned_tuples=True)

    def shell(command: str) -> Any:
        done = subprocess.run([sys.executable, "-S", "-E", "-c", HOOK_PROCESS, str(holding), command], stdout=subprocess.PIPE, check=False)
        return lua.table_from(done.stdout.decode().split("\n")[:-1])

    lua.globals().shell = shell
    lua.execute(POPEN)
    lua.globals().slurm = lua.table_from({"SUCCESS": 0, "ERROR": -1, "log_info": lambda *ignored: None, **slurm})
    lua.execute(f"dofile('{file}')")
    return lua


def loaded(version: str, file: Path, **slurm: Any) -> Call:
    """Calls functions of a hook by name; a table comes as a list."""
    lua = runtime(version, file, **slurm)

    def call(name: str, *arguments: Any) -> Any:
        found = lua.globals()[name](*arguments)
        return list(found.values()) if hasattr(found, "values") else found

    return call


@pytest.fixture(params=RUNTIMES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- directives ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("#!/bin/sh\n#WOOLY vram=8192\ntrue\n", ["--required-vram=8192"]),
        ("#!/bin/sh\n\n#WOOLY vram=8G prio=0\tgpus=2\n", ["--required-vram=8192", "--prio=0", "--gpus=2"]),
        ("#WOOLY vram=1M exclusive noswap", ["--required-vram=1", "--exclusive", "--noswap"]),
        ("#SBATCH -n 1\n#WOOLY group=a group=b.c \\\n#WOOLY vram=00012\n", ["--group=a", "--group=b.c", "--required-vram=12"]),
        ("#WOOLY vram=67108864\necho\n#WOOLY vram=2\n", ["--required-vram=67108864"]),  # Slurm reads up to the first command
    ],
)
def test_directives_become_flags(version: str, script: str, flags: list[str]) -> None:
    found = loaded(version, HOOKS / "burst_buffer.lua")("wooly_flags", script)
    assert found == flags


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("#WOOLY vram=lots", "vram=lots in #WOOLY is not allowed; write MiB on each GPU such as vram=8192, or GiB such as vram=8G"),
        ("#WOOLY vram=0", "vram=0 in #WOOLY is not allowed; write MiB on each GPU such as vram=8192, or GiB such as vram=8G"),
        ("#WOOLY vram=65537G", "vram=65537G in #WOOLY is not allowed; write MiB on each GPU such as vram=8192, or GiB such as vram=8G"),
        ("#WOOLY vram=1 prio=5", "prio=5 in #WOOLY is not allowed; write prio=0 (highest) to prio=4"),
        ("#WOOLY vram=1 gpus=65", "gpus=65 in #WOOLY is not allowed; write gpus=1 to gpus=64"),
        ("#WOOLY vram=1 group=--tenant", "group=--tenant in #WOOLY is not allowed; write the id of a node group"),
        ("#WOOLY vram=1 group=$(id)", "group=$(id) in #WOOLY is not allowed; write the id of a node group"),
        ("#WOOLY vram=1\n#WOOLY vram=1", "vram is given twice in #WOOLY; write it once"),
        ("#WOOLY vram=1 noswap noswap", "noswap is given twice in #WOOLY; write it once"),
        ("#WOOLY vram=1 tenant=other", "#WOOLY does not know tenant=other; it knows vram, prio, gpus, group, exclusive and noswap"),
        ("#WOOLYX vram=1", "#WOOLY does not know X; it knows vram, prio, gpus, group, exclusive and noswap"),
        ("#WOOLY prio=1", "#WOOLY names no vram; write MiB on each GPU such as #WOOLY vram=8192"),
        ("true", "#WOOLY names no vram; write MiB on each GPU such as #WOOLY vram=8192"),
    ],
)
def test_bad_directives_are_refused(version: str, script: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script)
    found = loaded(version, HOOKS / "burst_buffer.lua")("slurm_bb_job_process", str(tmp_path / "script"))
    assert found == (-1, f"wooly: {sentence}")


# -- ids and words ---------------------------------------------------------------------------------------------------------------------


@given(cluster=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60), job=st.integers(1, 2**32 - 1))
@settings(max_examples=50)
def test_task_ids_are_valid_and_names_of_clusters_stay_apart(cluster: str, job: int) -> None:
    make = loaded("5.1", HOOKS / "burst_buffer.lua")
    found = make("wooly_task_id", cluster, str(job), "1795000000", "1795000001")
    assert len(found) <= 64 and all(part.isascii() and (part.isalnum() or part in "-_") for part in found), found
    assert found != make("wooly_task_id", f"{cluster}x", str(job), "1795000000", "1795000001")
    assert found != make("wooly_task_id", cluster, str(job), "1795000000", "1795000002")


def test_a_task_id_is_a_function_of_cluster_job_and_times(version: str) -> None:
    make = loaded(version, HOOKS / "burst_buffer.lua")
    assert make("wooly_task_id", "lab", "42", "1795000000", "1795000003") == "lab-42-1795000000-1795000003"
    long = make("wooly_task_id", "a cluster with a long name", "4294967295", "1795000000", "1795000001")
    assert long == "a-cluster-w-" + long[12:20] + "-4294967295-1795000000-1795000001" and len(long) <= 64


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
@settings(max_examples=50)
def test_quoted_text_is_one_word_of_a_shell(text: str) -> None:
    word = loaded("5.1", HOOKS / "burst_buffer.lua")("wooly_quoted", text)
    assert subprocess.run(["sh", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout.decode() == text


@pytest.mark.parametrize(
    ("config", "user", "account", "tenant"),
    [
        ("", "alice", "physics", None),
        ("tenant = all", "alice", "physics", "all"),
        ("tenant = all\ntenant.user.alice = acme", "alice", "", "acme"),
        ("tenant.user.alice = acme\n tenant.account.physics=phys \n", "alice", "physics", "phys"),
        (
            "tenant.user.alice = acme",
            "bob",
            "a;b",
            (None, "wooly: no tenant for user bob, account a;b; ask the administrator to add one to wooly.conf"),
        ),
        ("# tenant.user.alice = acme", "bob", "", None),
        ("#tenant.user.alice = acme", "bob", "", None),
        ("tenant.user.alice@lab.example = acme", "alice@lab.example", "", "acme"),
        ("tenant.user.LAB\\alice = acme\ntenant = all", "LAB\\alice", "", "acme"),
    ],
)
def test_account_and_user_decide_the_tenant(version: str, config: str, user: str, account: str, tenant: object) -> None:
    lua = runtime(version, HOOKS / "burst_buffer.lua")
    decide = lua.eval("function(text, user, account) return wooly_tenant(wooly_config(text), user, account) end")
    assert decide(config, user, account) == tenant


# -- with commands ---------------------------------------------------------------------------------------------------------------------


class Site:
    """A folder of slurm.conf with the hooks, a job script, and stand-ins: ``squeue`` prints the job, ``wooly`` runs the
    commands of ``answer`` after it has written its arguments."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.version = version
        (folder / "burst_buffer.lua").write_text((HOOKS / "burst_buffer.lua").read_text())
        self.script = folder / "state/hash.2/job.42/script"
        self.script.parent.mkdir(parents=True)
        self.script.write_text("#!/bin/sh\n#WOOLY vram=64 group=fast\n")
        (folder / "key").write_text("wk_secret\n")
        self.configure("tenant.user.alice = acme")
        self.job("PENDING", "alice", "", HOSTILE)
        self.answer("echo WOOLY_TASK_ID=$3; echo CONTROLLER_URL=http://c:1; echo 'wooly: new\nLD_PRELOAD=/evil.so' >&2")
        self.stand_in("scontrol", "")

    def stand_in(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" >> {self.folder}/{name}.args\n{body}\n")
        path.chmod(0o755)

    def configure(self, *lines: str) -> None:
        text = (
            f"wooly = {self.folder}/bin/wooly",
            "cluster = lab",
            f"key_file = {self.folder}/key",
            "WOOLY_TLS_CA = /etc/it's.pem",
            *lines,
        )
        (self.folder / "wooly.conf").write_text("\n".join(text))

    def job(self, state: str, user: str, account: str, name: str, submitted_s: int = 1795000000, priority: int = 0) -> None:
        (self.folder / "42").write_text(f"{submitted_s}|{state}|{priority}|{user}|{account}|{name}\n")
        (self.folder / "ids").write_text("42|42\n")
        self.stand_in("squeue", f"case $4 in *%i) cat {self.folder}/ids ;; *) cat {self.folder}/${{3#--jobs=}} ;; esac")

    def answer(self, body: str) -> None:
        self.stand_in("wooly", f'echo "$WOOLY_API_KEY $WOOLY_TLS_CA $HOME" > {self.folder}/environment\n{body}')

    def given(self, name: str) -> list[str]:
        """Arguments of the calls of a stand-in since the last question."""
        path = self.folder / f"{name}.args"
        words = path.read_text().split("\0")[:-1] if path.exists() else []
        path.unlink(missing_ok=True)
        return words

    def call(self, name: str, *arguments: str, **slurm: Any) -> Any:
        return loaded(self.version, self.folder / "burst_buffer.lua", **slurm)(name, "42", *arguments)

    def setup(self) -> Any:
        return self.call("slurm_bb_setup", "1000", "1000", "", "0", str(self.script))

    def paths(self) -> str:
        out = self.folder / "path"
        assert self.call("slurm_bb_paths", str(self.script), str(out)) == 0
        return out.read_text()


@pytest.fixture
def site(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path, version)


def test_a_job_waits_for_its_reservation_gets_its_variables_and_releases_it(site: Site) -> None:
    assert site.setup() == 0
    assert site.call("slurm_bb_data_in", str(site.script)) == 0
    given = site.given("wooly")
    task = given[2]
    assert task.startswith("lab-42-1795000000-")
    assert given == [
        *("reserve", "--id", task, "--wait", "2073600", "--term", "3600"),
        *(f"--title=Slurm 42: {HOSTILE}"[:108], "--tenant=acme", "--required-vram=64", "--group=fast"),
    ]  # fmt: skip
    assert (site.folder / "environment").read_text() == "wk_secret /etc/it's.pem /nonexistent\n"
    assert not (site.folder / "hacked").exists()
    assert site.paths() == f"WOOLY_TENANT=acme\nWOOLY_TASK_ID={task}\nCONTROLLER_URL=http://c:1\n"
    assert site.call("slurm_bb_pre_run", str(site.script)) == 0
    assert site.given("wooly")[2:5] == [task, "--wait", "120"]
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0
    assert site.given("wooly") == ["release", task, "--reason", "Slurm job 42 PENDING"]
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0 and site.given("wooly") == []
    assert site.call("slurm_bb_paths", str(site.script), str(site.folder / "path"))[0] == -1


def test_the_reasons_of_a_wait_are_shown_without_places_and_other_tasks(site: Site) -> None:
    site.answer(
        "echo 'wooly: waiting for a place: number 2 of 3; 1 device busy; would let it in: the end of secret' >&2\n"
        "echo 'wooly: waiting for a place: number 1 of 3; 1 device busy; would let it in: the end of other' >&2\n"
        'echo "wooly: waiting for the controller: it\'s away" >&2; exit 75'
    )
    site.setup()
    assert site.call("slurm_bb_data_in", str(site.script)) == (-1, "wooly: waiting for the controller: it's away")
    assert site.given("scontrol") == [
        *("update", "JobId=42", "AdminComment=wooly: waiting for a place: 1 device busy"),
        *("update", "JobId=42", "AdminComment=wooly: waiting for the controller: it's away"),
    ]  # fmt: skip


def test_a_refusal_is_the_reason_of_the_held_job(site: Site) -> None:
    site.answer("echo \"wooly: tenant 'acme' is disabled\" >&2; exit 2")
    site.setup()
    assert site.call("slurm_bb_data_in", str(site.script)) == (-1, "wooly: tenant 'acme' is disabled")
    site.job("PENDING", "mallory", "acme", "n")
    site.given("wooly")
    assert "no tenant for user mallory" in site.call("slurm_bb_data_in", str(site.script))[1] and site.given("wooly") == []


def test_a_restarted_slurmctld_keeps_the_reservation_and_a_reused_id_has_another(site: Site) -> None:
    def task() -> str:
        assert site.setup() == 0
        site.call("slurm_bb_data_in", str(site.script))
        return site.given("wooly")[2]

    first = task()
    site.job("PENDING", "alice", "", "n", priority=7)
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0 and site.given("wooly") == []
    assert task() == first
    site.job("PENDING", "alice", "", "n", submitted_s=1795000003, priority=7)  # queued again
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0 and site.given("wooly")[:2] == ["release", first]
    site.job("PENDING", "alice", "", "other", submitted_s=1795000007)
    assert task().startswith("lab-42-1795000007-")


def test_the_element_with_the_id_of_its_array_is_not_taken_for_another(site: Site) -> None:
    site.setup()
    assert site.call("slurm_bb_data_in", str(site.script)) == 0
    task = site.given("wooly")[2]
    (site.folder / "ids").write_text("43|42_1\n42|42_2\n")
    (site.folder / "42").write_text("1795000000|PENDING|7|alice||n\n1795000000|TIMEOUT|7|alice||n\n")
    (site.folder / "42_2").write_text("1795000000|TIMEOUT|7|alice||n\n1795000000|PENDING|7|mallory||n\n")
    site.given("scontrol")
    assert site.call("slurm_bb_pre_run", str(site.script)) == 0
    assert site.given("scontrol")[-3:] == ["update", "JobId=42_2", f"AdminComment=wooly: reservation {task}"]
    site.given("wooly")
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0
    assert site.given("wooly") == ["release", task, "--reason", "Slurm job 42 TIMEOUT"], "another element waits, not this one"
    assert site.given("scontrol") == ["update", "JobId=42_2", f"AdminComment=wooly: released {task}"]
    (site.folder / "ids").write_text("43|42_1\n")
    assert site.setup()[0] == -1


def test_pipes_of_the_parent_do_not_count(site: Site) -> None:
    site.setup()
    ends = os.pipe()
    try:
        assert site.call("slurm_bb_data_in", str(site.script)) == 0
    finally:
        for end in ends:
            os.close(end)


def test_newer_versions_ask_again_instead_of_waiting(site: Site) -> None:
    site.setup()
    assert site.call("slurm_bb_data_in", str(site.script), SLURM_BB_BUSY="BUSY") == 0 and site.given("wooly") == []
    site.answer("echo 'wooly: waiting for a place' >&2; exit 75")
    assert site.call("slurm_bb_test_data_in", str(site.script), SLURM_BB_BUSY="BUSY") == (0, "BUSY")
    site.answer("echo 'wooly: reservation x is failed' >&2; exit 1")
    assert site.call("slurm_bb_test_data_in", str(site.script), SLURM_BB_BUSY="BUSY") == (-1, "wooly: reservation x is failed")
    site.answer("echo WOOLY_TASK_ID=x")
    assert site.call("slurm_bb_test_data_in", str(site.script), SLURM_BB_BUSY="BUSY")[0] == 0


def test_a_process_with_the_pipe_of_another_job_does_not_wait(site: Site) -> None:
    """slurmscriptd forks in threads: see holds_another_job."""
    site.setup()
    found = site.call("slurm_bb_data_in", str(site.script), holding=True)
    assert found == (-1, "wooly: staged again") and site.given("wooly") == []
    site.given("scontrol")
    assert site.call("slurm_bb_job_teardown", str(site.script), "true") == 0
    assert (site.given("wooly"), site.given("scontrol")) == ([], ["release", "42"])
    assert site.call("slurm_bb_data_in", str(site.script)) == 0  # with the same reservation
    assert site.given("wooly")[0] == "reserve"


# -- job_submit ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "directive"),
    [
        ({"tres_per_node": "gres:woolyai_vram:16384"}, "#WOOLY vram=16384"),
        ({"tres_per_node": "gres:gpu:1,gres/woolyai_vram=16G"}, "#WOOLY vram=16G"),
        ({"gres": "woolyai_vram:5"}, "#WOOLY vram=5"),
        ({"tres_per_node": "gres:woolyai_vram:5", "script": "#!/bin/sh\n#WOOLY vram=9\n"}, None),
        ({"tres_per_node": "gres:woolyai_vram:5", "burst_buffer": "#WOOLY vram=9"}, "#WOOLY vram=9"),
        ({"tres_per_node": "gres:gpu:1"}, None),
        ({}, None),
    ],
)
def test_jobs_with_the_gres_get_a_reservation(version: str, job: dict[str, str], directive: str | None) -> None:
    lua = runtime(version, HOOKS / "wooly_job_submit.lua")
    described = lua.table_from(job)
    assert lua.globals().slurm_job_submit(described, None, 1000) == 0
    assert described.burst_buffer == directive


def test_a_bad_count_is_refused_and_the_script_of_the_site_is_asked_first(version: str) -> None:
    lua = RUNTIMES[version]()
    lua.execute("slurm = {SUCCESS = 0, ERROR = -1, user_msg = function(text) said = text end}")
    lua.execute("function slurm_job_submit(job) return job.name == 'no' and 2050 or 0 end")
    lua.execute(f"dofile('{HOOKS}/wooly_job_submit.lua')")
    submit = lua.globals().slurm_job_submit
    for gres in ("gres:woolyai_vram", "gres:woolyai_vram:0", "gres:woolyai_vram:-1", "gres:woolyai_vram:x"):
        assert submit(lua.table_from({"tres_per_node": gres}), None, 1000) == -1
        assert lua.globals().said == "wooly: the count of woolyai_vram is MiB on each GPU; write --gres=woolyai_vram:8192"
    assert submit(lua.table_from({"name": "no", "tres_per_node": "gres:woolyai_vram:1"}), None, 1000) == 2050


# -- scripts of nodes ------------------------------------------------------------------------------------------------------------------


def prolog(site: Site, name: str = "wooly_taskprolog.sh", **environment: str) -> subprocess.CompletedProcess[str]:
    script = site.folder / name
    script.write_text((HOOKS / name).read_text())
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "42", **environment}
    return subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)


def test_the_task_prolog_switches_the_device_on_for_those_who_ask(site: Site) -> None:
    site.stand_in("squeue", "echo gres:woolyai_vram:16384")
    assert prolog(site).stdout == "" and prolog(site, USE_WOOLY="1", WOOLY_TASK_ID="t").stdout == ""
    done = prolog(site, USE_WOOLY="1")
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["export WOOLY_TLS_CA=/etc/it's.pem", "export WOOLY_QUEUE=1", "export REQUIRED_VRAM=16384"]
    site.stand_in("squeue", "echo N/A; exit 1")
    assert "REQUIRED_VRAM" not in prolog(site, USE_WOOLY="1").stdout


@pytest.mark.parametrize(("answer", "code"), [("exit 0", 0), ("exit 75", 0), ("kill -9 $$", 0)])
def test_the_epilog_releases_and_never_fails(site: Site, answer: str, code: int) -> None:
    site.stand_in("squeue", "echo '43  wooly: reservation lab-43-1-2  '; echo '42  wooly: reservation lab-42-1-2      '")
    site.answer(answer)
    assert prolog(site, "wooly_epilog.sh").returncode == code
    assert site.given("wooly") == ["release", "lab-42-1-2", "--reason", "Slurm job 42"]
    for comment in ("wooly: waiting for a place", "wooly: reservation a; touch hacked", ""):
        site.stand_in("squeue", f"echo '42  {comment}'")
        assert prolog(site, "wooly_epilog.sh").returncode == 0 and site.given("wooly") == []
