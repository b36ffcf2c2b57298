"""Supervisor, MPS daemon, MPS server and agent killed before and after each control command, and a full disk, beside
clients that check every result and are started again by the kubelet if they end.

Which commands there are is not listed here: agent and supervisor tell of each one that they give (control_points).
Each end asks: is the share Ready again, do all clients compute again, was a result ever wrong, and was nobody hurt who
should not have been? Ends that an earlier run has done are not done again; each says with which image. A container that
ends is started again after a second, so that the time goes into ends. A lost GPU would need a setting of the machine,
so it is left out.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from localcluster.cluster import processes
from measurements.gpu.stack.control_points import Command, ControlPoints, instrumented
from measurements.gpu.stack.suite import Findings
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of, kill_if_there, processes_of_part, restart_within

SHARE, PER_GPU, GPUS, NEIGHBOURS = "control", 8, 1, 3
VICTIMS = ("itself", "daemon", "server", "the other")
"""`itself`: who gives the command, agent or supervisor; `the other`: of these two the one that does not. A supervisor
that was ended begins to count its daemon's failures anew, so each command has its four one after the other: of daemons
alone, each would wait longer than the one before it.
"""
LAST_SECONDS = 60
"""No end is begun in the last so many of the suite's time: the rest waits for the next run."""
LEARN_SECONDS, FULL_SECONDS, READY_SECONDS = 5.0, 12.0, 60
NOTICED_SECONDS = 2.0
"""So long after a new server the kubelet knows that clients of the one before it have ended."""
PIDS_OF = {"daemon": ("controlPid",), "server": ("serverPid",), "mps-supervisor": ("controlPid", "serverPid")}
"""What is another one after the end of each, in state.json."""
WATCHED_SECONDS = 3.0
"""So long after an end that should hurt nobody, neighbours are looked at: they check every 20 ms."""


@dataclass
class Scene:
    """`gpu`: its product. `ways`: by command, the names of the actions by which it was given, the surest first."""

    harness: Harness
    share: Share
    tenant: Tenant
    points: ControlPoints
    names: list[str]
    gpu: str
    ways: dict[Command, list[str]] = field(default_factory=dict)
    numbered: int = 0

    def name(self, kind: str) -> str:
        self.numbered += 1
        return f"{kind}-{self.numbered}"

    def restarts(self) -> int:
        pods = [entry for entry in self.tenant.pods() if entry["metadata"]["name"] in self.names]
        return sum(entry["restartCount"] for pod in pods for entry in pod["status"].get("containerStatuses", ()))


@dataclass(frozen=True)
class Action:
    """What makes agent and supervisor give commands. `harmful`: it ends clients by itself."""

    name: str
    happen: Callable[[Scene], None]
    harmful: bool = False


def measure(harness: Harness, findings: Findings) -> None:
    began = time.monotonic()
    earlier = [end for run in (findings.earlier, *findings.others) for end in run.get("ends", [])]
    by_name = {text_of(end): end for end in earlier if end["reached"] and end["well"]}
    findings.figures["ends"] = ends = list(by_name.values())
    findings.figures["full_disk"] = findings.earlier.get("full_disk")
    with (
        _prompt_restarts(harness),
        instrumented(harness) as points,
        harness.share(SHARE, per_gpu=PER_GPU, per_node=GPUS) as share,
    ):
        share.wait_capacity(PER_GPU)
        with harness.namespace() as tenant:
            names = tenant.neighbours(SHARE, NEIGHBOURS, restart="Always")
            scene = Scene(harness, share, tenant, points, names, findings.truth["product"])
            findings.figures["commands"] = commands = _known(scene, findings.earlier) or _learn(scene)
            scene.ways = {Command(known["role"], known["command"]): known["by"] for known in commands}
            if findings.figures["full_disk"] is None:
                findings.figures["full_disk"] = _fill_disk(scene)
            part, parts = findings.part
            todo = [known for known in ends_of(sorted(scene.ways)[part - 1 :: parts]) if text_of(known) not in by_name]
            while todo and time.monotonic() - began < findings.seconds - LAST_SECONDS:
                ends.append(_end(scene, todo.pop(0)))
    findings.expect("every end was tried", not todo)
    _judge(findings, ends, findings.figures["full_disk"])


@contextmanager
def _prompt_restarts(harness: Harness) -> Iterator[None]:
    before = restart_within(harness.layout, "1s")
    try:
        yield
    finally:
        restart_within(harness.layout, before)


def _judge(findings: Findings, ends: list[dict[str, Any]], disk: dict[str, Any]) -> None:
    findings.expect("each end was reached", all(end["reached"] for end in ends))
    findings.expect("after each end the share is Ready and all clients compute again", all(end["well"] for end in ends))
    findings.expect("no result of a client was wrong", not any(end["wrong"] for end in ends))
    spared = [end for end in ends if end["spares"]]
    findings.expect(
        "nobody is hurt but by the end of supervisor, daemon or server", not any(end["hurt"] for end in spared)
    )
    findings.expect(
        "after the full disk the share is Ready and all clients compute", disk["well"] and not disk["wrong"]
    )


# -- what is there to be ended at


def _known(scene: Scene, earlier: dict[str, Any]) -> list[dict[str, Any]]:
    """The commands of an earlier run, if its agent and supervisor were the same."""
    same = earlier and earlier["environment"]["operator_image"] == scene.harness.stack.operator_image
    return list(earlier["commands"]) if same else []


def _learn(scene: Scene) -> list[dict[str, Any]]:
    """Each command, with those of ACTIONS by which it was given, the plainest first."""
    ways: dict[Command, list[str]] = {}
    for action in ACTIONS:
        scene.points.clear()
        action.happen(scene)
        time.sleep(LEARN_SECONDS)
        _recover(scene)
        for command in sorted(scene.points.passed()):
            ways.setdefault(command, []).append(action.name)
    return [asdict(command) | {"by": names} for command, names in ways.items()]


def ends_of(commands: list[Command]) -> Iterator[dict[str, str]]:
    for command in commands:
        for when in ("before", "after"):
            for victim in VICTIMS:
                yield asdict(command) | {"when": when, "victim": victim}


def text_of(end: dict[str, Any]) -> str:
    return " ".join((end["role"], end["command"], end["when"], end["victim"]))


# -- an end


def _end(scene: Scene, end: dict[str, str]) -> dict[str, Any]:
    killed = _killed(end)
    before, daemon, began = scene.restarts(), _state(scene), time.monotonic()
    problem, reached, hit, tried = "", False, False, list[str]()
    try:
        reached = reach(scene, end, tried, ACTIONS)
        if reached:
            hit = _kill(scene, killed)
            scene.points.let_go()
            _wait_replaced(scene, killed, daemon)
    except AssertionError as error:
        problem = str(error)[:1000]
    finally:
        scene.points.let_go()
    spares = killed == "agent" and not any(action.harmful for action in ACTIONS if action.name in tried)
    if spares:
        time.sleep(WATCHED_SECONDS)
    problem = _recover(scene) or problem
    return end | {
        "by": tried,
        "killed": killed,
        "hit": hit,
        "reached": reached,
        "spares": spares,
        "hurt": scene.restarts() - before,
        "well": not problem,
        "problem": problem,
        "wrong": _wrong(scene),
        "seconds": round(time.monotonic() - began, 1),
        "operator_image": scene.harness.stack.operator_image,
        "gpu": scene.gpu,
    }


def reach(scene: Scene, end: dict[str, str], tried: list[str], actions: Sequence[Action]) -> bool:
    """Tells whether somebody is held at the command. `tried`: gets the actions that it took.

    An action that does not lead there was beside the command by chance, as it can be with one that comes each so many
    seconds: it is tried last from now on.
    """
    command = Command(end["role"], end["command"])
    scene.points.ask(command, end["when"])
    for name in list(scene.ways[command]):
        tried.append(name)
        next(action for action in actions if action.name == name).happen(scene)
        if scene.points.wait_held():
            return True
        scene.ways[command].remove(name)
        scene.ways[command].append(name)
    return False


def _killed(end: dict[str, str]) -> str:
    match end["victim"]:
        case "itself":
            return end["role"]
        case "the other":
            return "agent" if end["role"] == "mps-supervisor" else "mps-supervisor"
    return end["victim"]


def _kill(scene: Scene, who: str) -> bool:
    """Kills, and tells whether that hit anybody: a server may have been ended by what led here."""
    if who in ("daemon", "server"):
        state = _state(scene)
        assert state, f"the daemon's state cannot be read, so no {who} was killed"
        pids = [state[key] for key in PIDS_OF[who] if state[key]]
    else:
        pids = processes_of_part(scene.harness, who)
        assert pids, f"there is no {who} to kill"
    hits = [kill_if_there(scene.harness, pid) for pid in pids]
    return any(hits)


def _wait_replaced(scene: Scene, killed: str, before: dict[str, Any]) -> None:
    """Waits until clients that this must end have ended, so that what goes on afterwards are others."""
    ended = PIDS_OF.get(killed, ())
    wait_until(
        f"another {killed}", lambda: all(_state(scene).get(key) not in (None, 0, before.get(key)) for key in ended), 60
    )
    if ended:
        time.sleep(NOTICED_SECONDS)


def _state(scene: Scene) -> dict[str, Any]:
    try:
        return daemon_of(scene.harness, scene.share)
    except (StopIteration, OSError, ValueError):
        return {}


def _recover(scene: Scene) -> str:
    """Waits until all is well. Returns what is not, or nothing."""
    try:
        scene.harness.wait_component("agent")
        scene.share.wait_ready(seconds=READY_SECONDS)
        for name in scene.names:
            what = f"{name} computes"
            wait_until(
                what,
                lambda client=name: _computes(scene, client),
                READY_SECONDS,
                lambda client=name: scene.tenant.explain(client),
            )
        scene.tenant.go_on(scene.names)
    except AssertionError as error:
        return str(error)[:1000]
    return ""


def _computes(scene: Scene, name: str) -> bool:
    """Tells whether the pod computes in its present container."""
    return name in {pod["metadata"]["name"] for pod in scene.tenant.running()} and scene.tenant.checks(name) > 0


def _wrong(scene: Scene) -> int:
    return sum(len(scene.tenant.events_of(name, "wrong")) for name in scene.names)


# -- what makes commands be given


def _nothing(_: Scene) -> None:
    """The supervisor looks after its daemon every two seconds."""


def _change_limits(scene: Scene) -> None:
    threads = 20 if scene.share.get()["spec"]["clients"]["threads"]["default"] != 20 else 25
    scene.share.apply(PER_GPU, {"default": threads, "max": 50}, per_node=GPUS)


def _come(scene: Scene) -> None:
    """Makes a client with limits of its own, which are set for its turn."""
    finished = [pod["metadata"]["name"] for pod in scene.tenant.pods() if pod["status"].get("phase") == "Succeeded"]
    if finished:
        scene.tenant.kubectl.delete("pods", *finished, wait=False)
    own = {"gpushare.dev/threads": "10"}
    scene.tenant.start(scene.tenant.pod(scene.name("comes"), SHARE, "limits", "--throughput", "0", annotations=own))


def _depart(scene: Scene) -> None:
    """Deletes a client in mid-kernel. Its grace is long enough for an agent that is started again."""
    name = scene.name("departs")
    pod = scene.tenant.pod(name, SHARE, "depart", "--role", "victim", "--kernel-ms", "100", grace=30)
    scene.tenant.start(pod)
    scene.tenant.wait_event(name, "started")
    scene.tenant.kubectl.delete("pod", name, wait=False)


def _end_server(scene: Scene) -> None:
    _kill(scene, "server")


def _end_daemon(scene: Scene) -> None:
    _kill(scene, "daemon")


ACTIONS = (
    Action("nothing", _nothing),
    Action("limits are changed", _change_limits),
    Action("a client comes", _come),
    Action("a client departs", _depart),
    Action("the server ends", _end_server, harmful=True),
    Action("the daemon ends", _end_daemon, harmful=True),
)


# -- a full disk


def _fill_disk(scene: Scene) -> dict[str, Any]:
    """/run of the node takes nothing more for FULL_SECONDS, while limits are changed."""
    before, restarts = _state(scene), scene.restarts()
    size, used = _space_of_run(scene)
    try:
        _resize_run(scene, used)
        _change_limits(scene)
        time.sleep(FULL_SECONDS)
        running = [pod for pod in scene.tenant.running() if pod["metadata"]["name"] in scene.names]
        during = scene.share.condition("DaemonsReady")
    finally:
        _resize_run(scene, size)
    problem = _recover(scene)
    after = _state(scene)
    return {
        "seconds": FULL_SECONDS,
        "running_while_full": len(running),
        "restarts": scene.restarts() - restarts,
        "daemon_replaced": before.get("controlPid") != after.get("controlPid"),
        "server_replaced": before.get("serverPid") != after.get("serverPid"),
        "told": {"reason": during.get("reason"), "message": during.get("message")},
        "well": not problem,
        "problem": problem,
        "wrong": _wrong(scene),
    }


def _space_of_run(scene: Scene) -> tuple[int, int]:
    """(KiB of the whole, KiB that are used)."""
    space = os.statvfs(scene.harness.in_node("/run"))
    return space.f_blocks * space.f_frsize // 1024, (space.f_blocks - space.f_bfree) * space.f_frsize // 1024


def _resize_run(scene: Scene, kib: int) -> None:
    init = str(processes.init(scene.harness.layout))
    command = ["nsenter", "--target", init, "--mount", "mount", "-o", f"remount,size={kib}k", "/run"]
    subprocess.run(command, check=True, timeout=10)
