"""Processes that end at a chosen write, each a real one: what they leave behind is what the moment says."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from tests.faults.injected.faultpoints import general, request_target, role_of

INJECTED = REPOSITORY / "tests" / "faults" / "injected"
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {injected!r})
import faultpoints
points = faultpoints.Points(Path({directory!r}), "agent")
faultpoints.instrument_sockets(points)
faultpoints.instrument_signals(points)
sys.addaudithook(faultpoints.audit(points))
print("begun", flush=True)
{body}
print("went on", flush=True)
"""
REPLACE = """
Path({work!r}, "new").write_text("0123456789")
Path({work!r}, "new").replace(Path({work!r}, "old"))
"""
OURS = """
from gpushare.mps.files import write_text
write_text(Path({work!r}, "daemon.json"), "{{}}")
"""
SOCKET = """
import socket
socket.socket(socket.AF_UNIX).bind({work!r} + "/new.sock")
Path({work!r}, "new.sock").replace(Path({work!r}, "old.sock"))
"""
SAY = """
import socket
client = socket.socket(socket.AF_UNIX)
client.connect({work!r} + "/control")
client.sendall(b"0123456789")
"""


def run(tmp_path: Path, body: str, order: dict[str, object] | None = None) -> tuple[list[dict[str, object]], str]:
    """(what was told, what was printed) of a process with this body."""
    directory, work = tmp_path / "points", tmp_path / "work"
    for path in (directory, work):
        path.mkdir(exist_ok=True)
    if order:
        (directory / "order-1.json").write_text(json.dumps({"skip": 0} | order))
    program = PROGRAM.format(injected=str(INJECTED), directory=str(directory), body=body.format(work=str(work)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == (137 if order else 0), done.stderr
    lines = (directory / "hits.jsonl").read_text().splitlines()
    (directory / "hits.jsonl").unlink()
    return [json.loads(line) for line in lines], done.stdout


def point(tmp_path: Path, body: str, kind: str) -> str:
    """The first point of this kind in an undisturbed run, after which nothing is left."""
    told, printed = run(tmp_path, body)
    assert "went on" in printed
    for path in (tmp_path / "work").iterdir():
        path.unlink()
    return str(next(line["point"] for line in told if str(line["point"]).startswith(f"agent: {kind} ")))


@pytest.mark.parametrize(
    ("when", "left"),
    [("before", {"new": "0123456789"}), ("middle", {"new": "01234"}), ("after", {"old": "0123456789"})],
)
def test_a_process_ends_before_within_and_after_it_replaces_a_file(
    tmp_path: Path, when: str, left: dict[str, str]
) -> None:
    told, printed = run(tmp_path, REPLACE, {"point": point(tmp_path, REPLACE, "replace"), "when": when})
    assert {path.name: path.read_text() for path in (tmp_path / "work").iterdir()} == left
    assert told[-1] == {"done": told[-2]["point"], "when": when, "died": "agent"}
    assert "went on" not in printed


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_ends_before_and_after_it_opens_a_file_to_write(tmp_path: Path, when: str) -> None:
    run(tmp_path, REPLACE, {"point": point(tmp_path, REPLACE, "open"), "when": when})
    assert {path.name: path.read_text() for path in (tmp_path / "work").iterdir()} == (
        {"new": ""} if when == "after" else {}
    )


@pytest.mark.parametrize(("when", "heard"), [("before", b""), ("middle", b"01234"), ("after", b"0123456789")])
def test_the_other_side_of_a_socket_hears_what_the_moment_says(tmp_path: Path, when: str, heard: bytes) -> None:
    (tmp_path / "work").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "work" / "control"))
        server.listen()
        told, _ = run(tmp_path, SAY)
        server.accept()[0].close()
        run(tmp_path, SAY, {"point": told[-1]["point"], "when": when})
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == heard


def test_what_is_no_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    told, _ = run(tmp_path, SOCKET + REPLACE)
    assert [line["partly"] for line in told if str(line["point"]).startswith("agent: replace ")] == [False, True]


def test_how_our_parts_write_a_file_passes_the_same_points_each_time(tmp_path: Path) -> None:
    """Its temporary name differs: were that a part of the point, no order would ever be carried out."""
    told, _ = run(tmp_path, OURS + OURS)
    points = [str(line["point"]) for line in told if "work/" in str(line["point"])]
    assert points[: len(points) // 2] == points[len(points) // 2 :]
    assert len(points) >= 4


def test_an_order_is_carried_out_once_and_at_the_passage_that_it_names(tmp_path: Path) -> None:
    twice = REPLACE + REPLACE
    order = {"point": point(tmp_path, REPLACE, "replace"), "when": "before", "skip": 1}
    told, _ = run(tmp_path, twice, order)
    assert sum(line.get("point") == order["point"] for line in told) == 2
    assert not (tmp_path / "points" / "order-1.json").exists()
    run(tmp_path, twice)


@pytest.mark.parametrize(
    ("method", "url", "target"),
    [
        ("PATCH", "https://h:1/apis/gpushare.dev/v1alpha1/gpunodes/node1/status?force=true", "PATCH gpunodes/status"),
        ("POST", "https://h/api/v1/namespaces/default/events", "POST events"),
        ("DELETE", "https://h/apis/apps/v1/namespaces/gpushare-system/daemonsets/red", "DELETE daemonsets"),
        ("PATCH", "https://h/api/v1/nodes/node1", "PATCH nodes"),
        ("POST", "https://h/api/v1/namespaces", "POST namespaces"),
    ],
)
def test_a_request_is_named_without_its_object(method: str, url: str, target: str) -> None:
    assert request_target(method, url) == target


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["/opt/gpushare/bin/python3", "/opt/gpushare/bin/gpushare", "mps-broker", "--share", "red"], "mps-broker"),
        (["python3", "-c", "pass"], ""),
        (["gpushare"], ""),
    ],
)
def test_a_part_is_known_by_its_command_line(words: list[str], role: str) -> None:
    assert role_of(words) == role


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "/run/gpushare/GPU-5f3c1a2b-0000-0000-0000-000000000001/.daemon.json.ab3_x9zk",
            "/run/gpushare/*/.daemon.json.*",
        ),
        ("/var/run/cdi/gpushare-0a1b2c3d4e.json", "/var/run/cdi/gpushare-*.json"),
        ("SIGKILL", "SIGKILL"),
    ],
)
def test_targets_lose_what_differs_from_run_to_run(text: str, expected: str) -> None:
    assert general(text) == expected
