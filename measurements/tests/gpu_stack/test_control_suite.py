"""Ends at control commands: their order, how somebody is brought to the command, and whose daemon it is."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from measurements.gpu.stack.control_points import Command
from measurements.gpu.stack.suites.accidents import control
from tests.cluster.node import daemon_of

LISTS, SETS = Command("agent", "get_server_list"), Command("mps-supervisor", "set_default_client_priority")


@dataclass
class Points:
    """Somebody comes to the command at the action with this number; never: 0."""

    comes_at: int
    waited: int = 0
    asked: list[tuple[Command, str]] = field(default_factory=list)

    def ask(self, command: Command, when: str) -> None:
        self.asked.append((command, when))

    def wait_held(self) -> bool:
        self.waited += 1
        return self.waited == self.comes_at


def scene(points: Points, ways: list[str]) -> control.Scene:
    nobody = cast(Any, None)
    return control.Scene(nobody, nobody, nobody, cast(Any, points), [], "a GPU", {SETS: ways})


def test_ends_of_one_command_follow_each_other() -> None:
    ends = list(control.ends_of([LISTS, SETS]))
    assert [end["command"] for end in ends] == [LISTS.command] * 8 + [SETS.command] * 8
    victims = [end["victim"] for end in ends]
    assert all(victim != following for victim, following in pairwise(victims))
    assert len({control.text_of(end) for end in ends}) == 16


@pytest.mark.parametrize(
    ("comes_at", "tried", "next_time"),
    [
        pytest.param(1, ["nothing"], ["nothing", "nothing more"], id="the first leads there"),
        pytest.param(2, ["nothing", "nothing more"], ["nothing more", "nothing"], id="the first was chance"),
        pytest.param(0, ["nothing", "nothing more"], ["nothing", "nothing more"], id="none does"),
    ],
)
def test_an_action_that_misses_the_command_is_tried_last(comes_at: int, tried: list[str], next_time: list[str]) -> None:
    points, ways = Points(comes_at), ["nothing", "nothing more"]
    had: list[str] = []
    end = {"role": SETS.role, "command": SETS.command, "when": "before"}
    actions = [control.Action(name, lambda _: None) for name in ways]
    reached = control.reach(scene(points, ways), end, had, actions)
    assert (reached, had, ways) == (comes_at > 0, tried, next_time)
    assert points.asked == [(SETS, "before")]


def test_the_daemon_of_a_share_is_found_beside_whole_gpus_and_other_shares(
    tmp_path: Path,
) -> None:
    for name, share, pid in (("GPU-1", "", 0), ("GPU-2", "other", 11), ("GPU-3", "control", 12)):
        (tmp_path / name).mkdir()
        if share:
            (tmp_path / name / "state.json").write_text(json.dumps({"share": share, "controlPid": pid}))
    harness = SimpleNamespace(gpu_dirs=lambda: {directory.name: directory for directory in sorted(tmp_path.iterdir())})
    assert daemon_of(cast(Any, harness), cast(Any, SimpleNamespace(name="control")))["controlPid"] == 12
