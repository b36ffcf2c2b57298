"""What is read of a process, of the disk and of the audit log, and what a minute makes of it."""

import json
import os
from pathlib import Path

from measurements.long_life.minutes import Minutes
from measurements.long_life.samples import AuditLog, Process, Sample, disk, processes, writes


def audit(account: str, verb: str, resource: str) -> str:
    return json.dumps(
        {
            "verb": verb,
            "user": {"username": account},
            "objectRef": {"resource": resource, "namespace": "gpushare-system"},
        }
    )


def proc(directory: Path, pid: str, command: str, started: int = 77) -> None:
    entry = directory / pid
    (entry / "fd").mkdir(parents=True)
    for number in range(3):
        (entry / "fd" / str(number)).touch()
    (entry / "cmdline").write_text("\0".join(command.split()) + "\0")
    (entry / "status").write_text("Name:\tx y\nVmRSS:\t   2048 kB\nThreads:\t5\n")
    (entry / "stat").write_text(f"{pid} (a (b) c) S " + " ".join(["0"] * 18) + f" {started} 0\n")


def test_only_our_parts_are_read_and_told_apart_by_their_start(tmp_path: Path) -> None:
    proc(tmp_path, "7", "/opt/gpushare/bin/python3 /opt/gpushare/bin/gpushare agent")
    proc(tmp_path, "8", "/opt/gpushare/bin/python3 /opt/gpushare/bin/gpushare mps-broker", started=88)
    proc(tmp_path, "9", "/usr/bin/kubelet agent")
    (tmp_path / "10").mkdir()
    (tmp_path / "meminfo").touch()
    assert sorted(processes(tmp_path), key=str) == [
        Process("agent", "7-77", 2.0, 3, 5),
        Process("mps-broker", "8-88", 2.0, 3, 5),
    ]


def test_the_disk_has_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_bytes(b"x" * 2048)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "log")
    os.mkfifo(tmp_path / "a" / "pipe")
    assert disk([tmp_path, tmp_path / "nowhere"]) == (2.0, 1)


def test_requests_of_our_accounts_that_change_something_are_counted() -> None:
    ours = "system:serviceaccount:gpushare-system:gpushare-"
    lines = [
        audit(f"{ours}agent", "patch", "gpunodes"),
        audit(f"{ours}agent", "create", "events"),
        audit(f"{ours}operator", "get", "gpunodes"),
        audit("system:node:node1", "create", "events"),
        audit("system:serviceaccount:other:gpushare-agent", "create", "pods"),
        "not JSON, and not ours",
    ]
    every, events = writes(iter(lines))
    assert (every, +events) == ({"agent": 2}, {"agent": 1})


def test_the_audit_log_is_followed_across_a_rotation_and_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("before\n")
    log = AuditLog(path)
    with path.open("a") as file:
        file.write("one\nhal")
    assert list(log.lines()) == ["one"]
    with path.open("a") as file:
        file.write("f\n")
    path.rename(tmp_path / "audit-1.log")
    path.write_text("two\n")
    assert list(log.lines()) == ["half", "two"]


def sample(at: float, rss: float, writes: int) -> Sample:
    process = Process("agent", "7-77", rss, 40, 9)
    return Sample(at, 3, 2, (process,), 12.0, 4, 900, {"agent": writes}, {})


def test_a_minute_has_medians_and_rates_and_the_last_one_is_left_out() -> None:
    taken = [sample(at, rss, 2) for at, rss in ((10, 50), (20, 90), (30, 51), (60, 70), (90, 71), (119, 72), (121, 1))]
    minutes = Minutes.of(taken, "c")
    assert minutes.load == {0: (3, 2), 1: (3, 2)}
    assert minutes.series["agent", "memory"] == {"c 7-77": {0: 51, 1: 71}}
    assert minutes.series["node", "disk"] == {"c": {0: 12.0, 1: 12.0}}
    assert minutes.series["agent", "API writes"] == {"c": {0: 12.0, 1: 4.04}}
    assert minutes.series["operator", "events"] == {"c": {0: 0.0, 1: 0.0}}


def test_a_sample_comes_back_from_its_line() -> None:
    assert Sample.of(sample(10, 50, 2).line()) == sample(10, 50, 2)
