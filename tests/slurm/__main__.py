"""One cluster lives through every step below, in this order; at the end no node is drained and no reservation is left."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.house import House, NodeSpec
from tests.support.node import until
from tests.support.sections import write_section
from tests.support.slurm import Slurm, free_ports, missing_program, python_of_jobs
from tests.support.stack import ROOT
from wooly.api import Client
from wooly.api.answers import Task

_JOBS: Final = 30
_VRAM_MB: Final = 1000
_SESSION: Final = (ROOT / "tests/slurm/job.py").read_text()
_REFUSED: Final = {
    "#WOOLY vram=lots": "vram=lots in #WOOLY is not allowed; write MiB on each GPU such as vram=8192, or GiB such as vram=8G",
    "#WOOLY prio=1": "#WOOLY names no vram; write MiB on each GPU such as #WOOLY vram=8192",
    "#WOOLY vram=1 prio=9": "prio=9 in #WOOLY is not allowed; write prio=0 (highest) to prio=4",
    "#WOOLY vram=1 vram=2": "vram is given twice in #WOOLY; write it once",
    "#WOOLY vram=1 $(touch hacked)": "#WOOLY does not know $(touch; it knows vram, prio, gpus, group, exclusive and noswap",
}


class Cluster:
    """Slurm beside a bus, a controller, billing and a node of 1000 MiB."""

    def __init__(self, house: House, slurm: Slurm) -> None:
        self.house = house
        self.slurm = slurm
        self.client = Client(house.url)

    def tasks(self, job: str = "") -> list[Task]:
        """The reservations of a job, or of all."""
        prefix = f"Slurm {job}:" if job else "Slurm "
        return [task for task in self.client.tasks(limit=500).items if task.title.startswith(prefix)]

    def open_tasks(self) -> list[Task]:
        return [task for task in self.tasks() if task.state in ("queued", "started")]

    def reservation(self, job: str) -> Task:
        """That of a job, once it is known."""
        return until(lambda: self.tasks(job), f"job {job} has a reservation")[0]

    def until_state(self, job: str, state: str, deadline_s: float = 60) -> None:
        until(lambda: self.slurm.state(job) == state, f"job {job} is {state}", deadline_s)

    def until_says(self, job: str, text: str) -> None:
        until(lambda: text in self.slurm.show(job, "admin_comment"), f"job {job} says {text!r}")

    def until_idle(self) -> None:
        until(lambda: self.slurm.node_states() == ["idle", "idle"] and not self.open_tasks(), "all is idle and released")

    def exclusive(self) -> str:
        """A running job that has the device alone, until it is cancelled."""
        job = self.slurm.sbatch("#WOOLY vram=100 exclusive", "exec sleep 600")
        self.until_state(job, "RUNNING")
        return job

    def cancel(self, job: str) -> None:
        assert self.slurm.call("scancel", job).returncode == 0
        self.until_state(job, "CANCELLED")


def refusals(cluster: Cluster) -> str:
    """Bad directives are refused by sbatch with a sentence"""
    for line, sentence in _REFUSED.items():
        done = cluster.slurm.call("sbatch", stdin=f"#!/bin/sh\n{line}\ntrue\n")
        assert done.returncode != 0 and f"wooly: {sentence}\n" in done.stderr, (line, done.stderr)
    assert not cluster.tasks() and not (cluster.slurm.folder / "out/hacked").exists()
    return f"{len(_REFUSED)} of {len(_REFUSED)}, word for word"


def many_jobs(cluster: Cluster) -> str:
    """Jobs run with reservations, three at a time on the device; every third opens a session"""
    began_s, most = time.monotonic(), 0
    jobs = []
    for number in range(_JOBS):
        body = f"exec {python_of_jobs()} - <<'END'\n{_SESSION}\nEND" if number % 3 == 0 else 'echo "$WOOLY_TASK_ID"'
        name = f"n{number}'; touch hacked; echo '\"$(touch hacked)"
        jobs.append(cluster.slurm.sbatch("#WOOLY vram=300 noswap", body, options=("--job-name", name, "--comment", name)))

    def ended() -> bool:
        nonlocal most
        most = max(most, sum(task.node is not None for task in cluster.open_tasks()))
        assert most <= 3, "more than the memory of the device is reserved"
        return not cluster.slurm.unfinished()

    until(ended, "all jobs have ended", 300)
    said = [cluster.slurm.output(job).split() for job in jobs]
    for number, (job, words) in enumerate(zip(jobs, said, strict=True)):
        task = cluster.reservation(job)
        assert cluster.slurm.state(job) == "COMPLETED" and words[0] == task.id, (job, words, task)
        assert words[1:] == (["computed", "3.0"] if number % 3 == 0 else []), words
        assert f"n{number}'; touch hacked" in task.title
    assert len({words[0] for words in said}) == _JOBS and not (cluster.slurm.folder / "out/hacked").exists()
    sessions = sum(len(words) > 1 for words in said)
    again = cluster.slurm.call("scontrol", "show", "jobs").stdout.count("staged again")
    passed_s = time.monotonic() - began_s
    return (
        f"{_JOBS} of {_JOBS} completed in {passed_s:.0f} s, {most} reserved at once, {sessions} computed in a session, {again} staged again"
    )


def cancel_waiting(cluster: Cluster) -> str:
    """A job waits without a node, says why, and is cancelled"""
    blocker = cluster.exclusive()
    job = cluster.slurm.sbatch("#WOOLY vram=300", "true")
    cluster.until_says(job, "held exclusively by another task")
    until(lambda: cluster.slurm.show(job, "Reason") == "BurstBufferStageIn", "Slurm shows that it is staged")
    assert cluster.slurm.show(job, "NodeList") == "" and cluster.slurm.node_states().count("idle") == 1
    text = cluster.slurm.show(job, "admin_comment")
    cluster.cancel(job)
    until(lambda: cluster.reservation(job).state not in ("queued", "started"), "the reservation is withdrawn")
    cluster.cancel(blocker)
    return f"`{text}`"


def cancel_running(cluster: Cluster) -> str:
    """A job with an open session is cancelled"""
    job = cluster.slurm.sbatch("#WOOLY vram=300", f"exec {python_of_jobs()} - wait <<'END'\n{_SESSION}\nEND")
    until(lambda: cluster.tasks(job) and cluster.reservation(job).sessions == 1, "its session is open")
    began_s = time.monotonic()
    cluster.cancel(job)
    until(lambda: cluster.reservation(job).state not in ("queued", "started"), "the reservation is released")
    return f"released {time.monotonic() - began_s:.1f} s later"


def withdrawn(cluster: Cluster) -> str:
    """An administrator withdraws the reservation of a waiting job: the job is held, and `scontrol release` reserves anew"""
    blocker = cluster.exclusive()
    job = cluster.slurm.sbatch("#WOOLY vram=300", 'echo "$WOOLY_TASK_ID"')
    first = cluster.reservation(job)
    cluster.until_says(job, "held exclusively")
    cluster.client.release(first.id, failed=True, reason="maintenance")
    until(lambda: "is failed: maintenance" in cluster.slurm.call("scontrol", "show", "job", job).stdout, "the job is held and says why")
    cluster.cancel(blocker)
    assert cluster.slurm.call("scontrol", "release", job, user="root").returncode == 0
    cluster.until_state(job, "COMPLETED")
    second = cluster.slurm.output(job).strip()
    assert second != first.id and second == cluster.reservation(job).id
    return "held with the sentence, then completed"


def lost_before_start(cluster: Cluster) -> str:
    """A reservation ends while its job waits for nodes: the job is queued again with a new one"""
    full = [cluster.slurm.sbatch("exec sleep 600", options=("--exclusive",)) for _ in range(2)]
    for job in full:
        cluster.until_state(job, "RUNNING")
    job = cluster.slurm.sbatch("#WOOLY vram=300", 'echo "$WOOLY_TASK_ID"')
    first = until(lambda: next((task for task in cluster.tasks(job) if task.node is not None), None), "it has a place")
    cluster.client.release(first.id, failed=True, reason="no session opened in time")
    for other in full:
        cluster.cancel(other)
    cluster.until_state(job, "COMPLETED")
    assert cluster.slurm.output(job).strip() not in ("", first.id)
    return "completed with the second"


def controller_away(cluster: Cluster) -> str:
    """The controller is killed: jobs wait and say so, running ones end; it comes back"""
    running = cluster.slurm.sbatch("#WOOLY vram=100", "while [ ! -e go ]; do sleep 0.1; done")
    cluster.until_state(running, "RUNNING")
    cluster.house.controller.kill()
    jobs = [cluster.slurm.sbatch("#WOOLY vram=100", 'echo "$WOOLY_TASK_ID"') for _ in range(3)]
    for job in jobs:
        cluster.until_says(job, "wooly: waiting for the controller: the controller at")
    (cluster.slurm.folder / "out/go").touch()
    cluster.until_state(running, "COMPLETED")
    assert "drained" not in cluster.slurm.node_states()
    text = cluster.slurm.show(jobs[0], "admin_comment")
    cluster.house.controller.start()
    for job in jobs:
        cluster.until_state(job, "COMPLETED")
    return f"3 of 3 completed; meanwhile `{text.split(' (')[0][:120]}`"


def slurmctld_killed(cluster: Cluster) -> str:
    """slurmctld is killed (-9) while a job waits: the job keeps its reservation"""
    blocker = cluster.exclusive()
    job = cluster.slurm.sbatch("#WOOLY vram=300", 'echo "$WOOLY_TASK_ID"')
    first, staged_s = cluster.reservation(job), time.time()
    cluster.until_says(job, "held exclusively")
    cluster.slurm.until_saved()
    staging = cluster.slurm.folder / "state/burst_buffer_lua_state"
    until(lambda: staging.exists() and staging.stat().st_mtime > staged_s, "Slurm has saved which jobs it stages", 150)
    cluster.slurm.stop_controller(signal.SIGKILL)
    cluster.slurm.start_controller()
    until(lambda: cluster.slurm.state(job) == "PENDING", "slurmctld is back")
    cluster.cancel(blocker)
    cluster.until_state(job, "COMPLETED", 180)  # Slurm stages it again after a minute
    assert cluster.slurm.output(job).strip() == first.id and len(cluster.tasks(job)) == 1
    return "completed with the same"


def reused_id(cluster: Cluster) -> str:
    """slurmctld forgets a job when it is killed (-9) and gives its id to another: two reservations, and that of the first ends"""
    cluster.slurm.set("term_s", "20")
    for attempt in range(1, 11):  # noqa: B007  # shown below
        cluster.slurm.until_saved()
        job = cluster.slurm.sbatch("#WOOLY vram=100", "exec sleep 600")
        orphan = cluster.reservation(job)
        cluster.slurm.stop_controller(signal.SIGKILL)
        cluster.slurm.start_controller()
        until(lambda: cluster.slurm.node_states() == ["idle", "idle"], "slurmctld is back and the nodes are idle")
        if not cluster.slurm.state(job):
            break
        cluster.cancel(job)
    else:
        raise AssertionError("Slurm remembered the job each time")
    again = cluster.slurm.sbatch("#WOOLY vram=100", 'echo "$WOOLY_TASK_ID"')
    assert again == job
    cluster.until_state(again, "COMPLETED")
    assert cluster.slurm.output(again).strip() not in ("", orphan.id)
    ended = until(
        lambda: next((task for task in cluster.tasks() if task.id == orphan.id and task.state not in ("queued", "started")), None),
        "the orphan has ended",
        150,
    )
    return f"job {job} twice, at attempt {attempt}; the orphan is {ended.state}: {ended.reason}"


def other_ways(cluster: Cluster) -> str:
    """`srun --bb`, a job array, the GRES woolyai_vram and USE_WOOLY=1"""
    done = cluster.slurm.call("srun", "--bb=#WOOLY vram=100", "printenv", "WOOLY_TASK_ID")
    assert done.returncode == 0 and done.stdout.strip().startswith("lab-"), done
    array = cluster.slurm.sbatch("#WOOLY vram=100", 'echo "$WOOLY_TASK_ID"', options=("--array=1-3", "--output=%A_%a.txt"))
    names = [f"{array}_{number}" for number in (1, 2, 3)]
    until(lambda: all(cluster.slurm.output(name) for name in names), "the array has run")
    assert len({cluster.slurm.output(name) for name in names}) == 3
    for name in names:
        assert cluster.slurm.show(name, "admin_comment").endswith(cluster.slurm.output(name).strip()), "each element shows its own"
    gres = cluster.slurm.sbatch('echo "$WOOLY_TASK_ID"', options=("--gres=woolyai_vram:123",))
    cluster.until_state(gres, "COMPLETED")
    task = cluster.reservation(gres)
    assert (task.required_vram_mb, task.id) == (123, cluster.slurm.output(gres).strip())
    bad = cluster.slurm.call("sbatch", "--gres=woolyai_vram:0", stdin="#!/bin/sh\ntrue\n")
    assert "the count of woolyai_vram is MiB on each GPU" in bad.stderr, bad
    plain = cluster.slurm.sbatch(
        "export USE_WOOLY=1", "unset CONTROLLER_URL WOOLY_QUEUE", "srun printenv CONTROLLER_URL WOOLY_QUEUE", "printenv WOOLY_TASK_ID"
    )
    until(lambda: cluster.slurm.state(plain) in ("COMPLETED", "FAILED"), "the opt-in has run")
    assert cluster.slurm.output(plain).split() == [cluster.house.url, "1"], cluster.slurm.output(plain)
    return "all"


_STEPS: Final[tuple[Callable[[Cluster], str], ...]] = (
    refusals, many_jobs, cancel_waiting, cancel_running, withdrawn, lost_before_start, controller_away, slurmctld_killed, reused_id,
    other_ways,
)  # fmt: skip


def leftovers(cluster: Cluster) -> str:
    """At the end: nodes, reservations, files and processes"""
    cluster.until_idle()
    until(lambda: not [*(cluster.slurm.folder / "state/wooly").iterdir()], "no job has a state of ours")
    until(lambda: not waiting_commands(cluster), "no command waits for a place")
    return f"no node drained, no reservation open of {len(cluster.tasks())}, no file, no command"


def waiting_commands(cluster: Cluster) -> list[int]:
    """Processes of `wooly reserve` for this cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and b"\0reserve\0" in (entry / "cmdline").read_bytes():
                if cluster.house.url.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm", description=__doc__)
    parser.add_argument("--only", default="", help="steps whose name has these letters")
    parser.add_argument("--publish", action="store_true", help="write the result to docs/how-to/slurm.md")
    asked = parser.parse_args()
    if missing := missing_program():
        print(f"{missing} is not installed; as root: apt-get install slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins")
        return 2
    rows = []
    (port,) = free_ports(1)
    with House(nodes=[NodeSpec("atlas", _VRAM_MB)], WOOLY_HTTP=f"127.0.0.1:{port}") as house:
        with Slurm(CONTROLLER_URL=house.url, WOOLY_NATS_URL=house.nats.url) as slurm:
            slurm.set("term_s", "600")  # longer than the minute for which Slurm delays jobs after a restart
            cluster = Cluster(house, slurm)
            try:
                for step in (*(step for step in _STEPS if asked.only in step.__name__), leftovers):
                    began_s = time.monotonic()
                    said = step(cluster)
                    rows.append(f"| {(step.__doc__ or '').strip()} | {said} |\n")
                    print(f"{step.__name__}: {said} ({time.monotonic() - began_s:.1f} s)", flush=True)
            except BaseException:
                (kept := Path(tempfile.gettempdir()) / "slurmctld.log").write_text(slurm.log())
                print(f"the log of slurmctld is {kept}; its end:\n{slurm.log()[-2000:]}")
                raise
    version = slurm.version
    text = f"{datetime.date.today()}, {version}, {os.cpu_count()} cores:\n\n| step | result |\n|---|---|\n" + "".join(rows)
    print(text)
    if asked.publish:
        write_section(ROOT / "docs/how-to/slurm.md", "slurm", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
