"""Operators that look at outdated states and end in the middle of their work: what they may never do, and what they reach in the end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.operator.objects import ANNOTATED_TASK, GpuPool, Pod, TenantPolicy, WoolyCluster
from services.operator.wanted import Answers, Mirror, Observed, Reason, Release, Reservation, Submit, Ungate, pod_uid, wanted

KUBERNETES = "abcdef01-0000-0000-0000-000000000000"
CLUSTER = WoolyCluster(name="main", uid="c", controller_url="http://c", bus_urls=("nats://b",))
POLICY = TenantPolicy(name="research", tenant="acme", namespaces=("research",))
PLACES = 2


class World:
    """Kubernetes and a controller with PLACES equal places. ``seen``: what operators may have looked at, the newest last."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.tasks: dict[str, str] = {}  #: state of each: queued, placed or over
        self.mirrors: dict[tuple[str, str], dict[str, object]] = {}
        self.version = 0
        self.made = 0
        self.wrong: list[str] = []

    def create(self) -> None:
        self.made += 1
        uid = f"{self.made:08}-0000-0000-0000-000000000000"
        self._put(Pod(uid, "research", f"p{self.made}", "", "Pending", {"woolyai.com/pod-vram": "1Gi"}, 0))

    def _put(self, pod: Pod) -> None:
        self.version += 1
        self.pods[pod.uid] = replace(pod, version=str(self.version))

    def run(self, which: int, phase: str) -> None:
        """The kubelet's part: only pods without a gate run and end."""
        ready = [pod for pod in self.pods.values() if pod.gate is None and not pod.over]
        if ready:
            self._put(replace(ready[which % len(ready)], phase=phase))

    def delete(self, which: int) -> None:
        if self.pods:
            del self.pods[[*self.pods][which % len(self.pods)]]

    def place(self) -> None:
        for task in sorted(self.tasks):
            if self.tasks[task] == "queued" and [*self.tasks.values()].count("placed") < PLACES:
                self.tasks[task] = "placed"

    def expire(self, which: int) -> None:
        """The term of a reservation runs out: no session."""
        placed = [task for task in self.tasks if self.tasks[task] == "placed"]
        if placed:
            self.tasks[placed[which % len(placed)]] = "over"

    def look(self, *, away: bool = False) -> Observed:
        live = {task: Reservation(task, "acme", "n1" if state == "placed" else "") for task, state in self.tasks.items() if state != "over"}
        answers = None if away else Answers(live, dict.fromkeys(live, Reason("it waits")), {})
        return Observed(
            KUBERNETES, CLUSTER, (GpuPool(name="p"),), (POLICY,), tuple(self.pods.values()), (), dict(self.mirrors), answers, "s"
        )

    def act(self, seen: Observed, until: int) -> int:
        """What an operator does that saw this and ends after ``until`` actions; how many there were."""
        actions = [action for action in wanted(seen) if isinstance(action, Submit | Ungate | Release | Mirror)]
        for action in actions[:until]:
            match action:
                case Submit():
                    task = next((task for task in action.tasks if self.tasks.get(task) != "over"), None)
                    if task is not None:
                        self.tasks.setdefault(task, "queued")
                case Ungate():
                    pod = self.pods.get(action.pod.uid)
                    if pod is not None and pod.version == action.patch[0]["value"]:
                        task = next(step["value"] for step in action.patch if step["path"].endswith("~1task"))
                        self._put(replace(pod, gate=None, annotations={**pod.annotations, ANNOTATED_TASK: task}))
                        if seen.answers is None or not seen.answers.reservations[task].node:
                            self.wrong.append(f"{pod.name} starts without a place")
                case Release():
                    if not (action.check and action.uid in self.pods):
                        pod = self.pods.get(action.uid)
                        if pod is not None and not pod.over:
                            self.wrong.append(f"the reservation of {pod.name} is released while it runs")
                        self.tasks[action.task] = "over"
                case Mirror():
                    self.mirrors[action.pod.namespace, action.pod.name] = {**action.spec, **action.status}
        return len(actions)


BACK = st.integers(0, 2)
"""0: the newest state."""
UNTIL = st.sampled_from([99, 1, 2])
LOOKS = st.tuples(st.just("look"), BACK, BACK, UNTIL)
OTHERS = st.tuples(
    st.sampled_from(["create", "place", "delete", "expire", "away", "Running", "Succeeded", "Failed"]), st.integers(0, 3), st.just(0), UNTIL
)
STEPS = st.lists(LOOKS | OTHERS, min_size=5, max_size=30).map(lambda steps: [("create", 0, 0, 0), *steps])


@settings(max_examples=800)
@given(STEPS)
def test_no_pod_starts_without_a_place_and_nothing_is_held_in_the_end(steps: list[tuple[str, int, int, int]]) -> None:
    world = World()
    known = [world.look()]
    for what, which, back, until in steps:
        match what:
            case "create" | "place":
                getattr(world, what)()
            case "delete" | "expire":
                getattr(world, what)(which)
            case "away":
                world.act(world.look(away=True), until)
            case "look":  # at pods and answers of two of the last states
                pods, answers = (known[-1 - min(steps_ago, len(known) - 1)] for steps_ago in (which, back))
                world.act(replace(pods, answers=answers.answers), until)
            case _:
                world.run(which, what)
        known.append(world.look())
    assert not world.wrong
    for _ in range(100):
        world.place()
        if not world.act(world.look(), 1000):
            break
    assert not world.wrong
    live = {pod_uid(KUBERNETES, task) for task, state in world.tasks.items() if state != "over"}
    assert live <= {pod.uid for pod in world.pods.values() if not pod.over}, "nothing is held for pods that are absent or have ended"
    held = sum(state == "placed" for state in world.tasks.values())
    gated = [pod for pod in world.pods.values() if pod.gate is not None]
    assert not gated or held == PLACES, "pods wait only for places"
    for pod in gated:
        assert world.mirrors[pod.namespace, pod.name]["phase"] == "Waiting"
