"""Points at which agent and supervisor stand at a control command: they tell of it, are held there, and go on."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from measurements.gpu.stack.injected import sitecustomize
from tests.cluster.changed_pods import change_pods, leave_pods
from tests.cluster.harness import Harness, wait_until

NODE_DIRECTORY = "/run/gpushare/.control"
NAME = "gpushare-control-points"
INSTRUMENTED = ("agent", "mps")
"""Components; their pods have the node's /run/gpushare."""
ENVIRONMENT = f"""Object{{spec: Object.spec{{
  containers: object.spec.containers.map(it, Object.spec.containers{{
    name: it.name,
    env: [Object.spec.containers.env{{name: "PYTHONPATH", value: "{NODE_DIRECTORY}"}}]}})}}}}"""
HELD_SECONDS = 15
"""A daemon that ended is started again within these, and its server after it."""


@dataclass(frozen=True, order=True)
class Command:
    """One call of `role` (agent | mps-supervisor); `command`: the names of its commands."""

    role: str
    command: str


class ControlPoints:
    def __init__(self, directory: Path) -> None:
        """`directory`: the node's, as this machine reaches it."""
        self._directory = directory

    def passed(self) -> set[Command]:
        """The commands passed since the last `clear`."""
        lines = (self._directory / sitecustomize.HITS).read_text().splitlines()
        hits = [json.loads(line) for line in lines if line.endswith("}")]
        return {Command(hit["role"], hit["command"]) for hit in hits}

    def clear(self) -> None:
        for name in (sitecustomize.ASKED, sitecustomize.HELD):
            (self._directory / name).unlink(missing_ok=True)
        (self._directory / sitecustomize.HITS).write_text("")

    def ask(self, command: Command, when: str) -> None:
        """Whoever comes there next stops. `when`: before | after."""
        new = self._directory / "hold.new"
        new.write_text(json.dumps(asdict(command) | {"when": when}))
        new.rename(self._directory / sitecustomize.ASKED)

    def wait_held(self) -> bool:
        """Tells whether anybody came there in time."""
        held = self._directory / sitecustomize.HELD
        try:
            return wait_until("somebody is held", held.exists, HELD_SECONDS)
        except AssertionError:
            return False

    def let_go(self) -> None:
        for name in (sitecustomize.ASKED, sitecustomize.HELD):
            (self._directory / name).unlink(missing_ok=True)


@contextmanager
def instrumented(harness: Harness) -> Iterator[ControlPoints]:
    """Agents and MPS pods that start meanwhile have the points; the agent is made anew before and after."""
    directory = harness.in_node(NODE_DIRECTORY)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(sitecustomize.__file__, directory / "sitecustomize.py")
    points = ControlPoints(directory)
    points.clear()
    change_pods(harness, NAME, INSTRUMENTED, ENVIRONMENT, NODE_DIRECTORY)
    try:
        _renew_agent(harness)
        yield points
    finally:
        points.let_go()
        leave_pods(harness, NAME)
        shutil.rmtree(directory, ignore_errors=True)
        _renew_agent(harness)


def _renew_agent(harness: Harness) -> None:
    harness.restart_pods("agent", force=True)
    harness.wait_component("agent")
