"""One proxy for all questions: how it starts, what it is asked, and that it ends with us, however we end."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube.resources import KubeError
from gpushare.kubectl.api import through
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.proxy import Proxy
from tests.unit.kubectl import stand_in


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which proxies have their sockets, whose paths are bounded: the one of pytest may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # it keeps what it has found
        yield Path(folder)


def test_many_questions_are_one_run_of_kubectl_and_nothing_is_left(tmp_path: Path, temporary: Path) -> None:
    program = stand_in.make(tmp_path, {"GET /a": (200, {"a": 1}), "POST /b?dryRun=All": (403, "no")})
    proxy = Proxy(program, ["--context=other"]).wait_ready()
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert through(proxy).read("/a") == {"a": 1}
    with pytest.raises(KubeError):
        through(proxy).send("POST", "/b?dryRun=All", {})
    assert not (tmp_path / "asked").read_text().count("ended")
    proxy.close()
    first, *questions, last = stand_in.asked(tmp_path)
    assert first.startswith("proxy --unix-socket=")
    assert first.endswith("--append-server-path --context=other")
    assert questions == ["GET /a", "POST /b?dryRun=All application/json {}"]
    assert last == "ended"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ('error: context "a" does not exist', 'no cluster: context "a" does not exist'),
        ("Error: unknown flag: --append-server-path", "no cluster: Error: unknown flag: --append-server-path"),
    ],
)
def test_where_it_does_not_start_kubectls_reason_is_told(
    tmp_path: Path, temporary: Path, fails: str, says: str
) -> None:
    proxy = Proxy(stand_in.make(tmp_path, fails=fails), [])
    with pytest.raises(UnreachableError) as told:
        proxy.wait_ready()
    assert str(told.value) == says
    proxy.close()
    assert list(temporary.iterdir()) == []


def test_a_proxy_that_ends_in_between_is_told(tmp_path: Path, temporary: Path) -> None:
    proxy = Proxy(stand_in.make(tmp_path), []).wait_ready()
    proxy.close()
    with pytest.raises(UnreachableError, match="no cluster: the connection broke off"):
        through(proxy).read("/a")


@pytest.mark.parametrize("characters", [70, 71, 79, 120])
def test_a_long_name_of_the_temporary_directory_is_no_obstacle(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        long = Path(above, "x" * (characters - len(above) - 1))
        long.mkdir()
        monkeypatch.setenv("TMPDIR", str(long))
        monkeypatch.setattr(tempfile, "tempdir", None)
        proxy = Proxy(stand_in.make(tmp_path), []).wait_ready()
        assert through(proxy).read("/a") == {"items": []}
        proxy.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_kills_us_ends_the_proxy_too(tmp_path: Path, temporary: Path, number: signal.Signals) -> None:
    code = (
        "import sys, time; from gpushare.kubectl.proxy import Proxy\n"
        f"Proxy({stand_in.make(tmp_path)!r}, []).wait_ready(); print('ready', flush=True); time.sleep(60)"
    )
    us = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ)
    assert us.stdout is not None
    assert us.stdout.readline() == b"ready\n"
    us.send_signal(number)
    us.wait(10)
    us.stdout.close()
    limit = time.monotonic() + 10
    while list(temporary.iterdir()) or "ended" not in stand_in.asked(tmp_path):
        assert time.monotonic() < limit, "the proxy goes on"
        time.sleep(0.02)
