"""The daemon's log: its bound, and the line that messages quote."""

from pathlib import Path

import pytest

from gpushare.mps.supervisor.daemon_log import DaemonLog
from tests.unit.small_disk import no_room, small_disk

FAILED = "[2026-11-21 08:23:24.044 Server   611] Failed to start : CUDA-capable device(s) is/are busy or unavailable"
NOISE = "[2026-11-21 08:23:24.540 Control   413] Cmd:get_server_list"


def log_of(tmp_path: Path, *lines: str) -> DaemonLog:
    log = DaemonLog(tmp_path / "log")
    with log.append() as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return log


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), ""),
        ((NOISE,), ""),
        (("one", "[… Control   406] Server 425 not found", "[… Control   406] ACTIVE", "[… Control   406] 16G"), "one"),
        (("one", "two", NOISE), "two"),
        ((FAILED, "Server encountered a fatal exception. Shutting down", "Server 611 exited", NOISE), FAILED),
        (("An instance of this daemon is already running",), "An instance of this daemon is already running"),
    ],
)
def test_the_relevant_line_is_the_last_error_or_the_last_word(
    tmp_path: Path, lines: tuple[str, ...], expected: str
) -> None:
    assert log_of(tmp_path, *lines).last_relevant_line() == expected


def test_lines_of_an_earlier_daemon_are_not_attributed_to_a_later_one(tmp_path: Path) -> None:
    log = log_of(tmp_path, FAILED)
    with log.append() as file:
        file.write(b"Starting control daemon\n")
    assert log.last_relevant_line() == "Starting control daemon"


def test_a_log_is_bounded_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = DaemonLog(tmp_path / "log", max_bytes=1000)
    with log.append() as writer:
        for number in range(100):
            writer.write(f"line {number} {'x' * 50}\n".encode())
            writer.flush()
            log.rotate()
            assert sum(path.stat().st_size for path in (tmp_path / "log").iterdir()) < 2200
        assert log.last_relevant_line().startswith("line 99")
    kept = (tmp_path / "log" / "control.log.1").read_text() + (tmp_path / "log" / "control.log").read_text()
    assert "\0" not in kept
    assert kept.endswith(f"line 99 {'x' * 50}\n")


def test_a_log_is_bounded_also_where_there_is_no_room_for_a_second_one(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        log = DaemonLog(tmp_path / "log", max_bytes=1000)
        with log.append() as writer:
            writer.write(b"x" * 5000)
            writer.flush()
            with no_room(tmp_path):
                log.rotate()
                assert [(path.name, path.stat().st_size) for path in (tmp_path / "log").iterdir()] == [
                    ("control.log", 0)
                ]
                writer.write(b"later\n")
                writer.flush()
                assert log.last_relevant_line() == "later"
