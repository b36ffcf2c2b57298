"""`kubectl gpushare ui` as a program: what it prints, whom it serves, how it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.unit.kubectl.page.stand_in import kubectl_for_nobody


@contextmanager
def program(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    kubectl_for_nobody(folder)
    # A test run in the background of a shell may have been told to ignore SIGINT, and would pass that on.
    python = ["env", "--default-signal=INT", sys.executable]
    command = [*python, "-m", "gpushare.kubectl.main", "ui", *arguments]
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    running = subprocess.Popen(
        command, env=os.environ | path | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=20)


def first_line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def get(address: str, path: str = "") -> int:
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request("GET", path or parts.path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(("end", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_on_this_machine_alone_until_it_is_told_to_end(
    tmp_path: Path, end: signal.Signals, code: int
) -> None:
    with program(tmp_path, "--no-browser") as running:
        address = first_line(running)
        assert address.startswith("http://127.0.0.1:")
        assert (get(address), get(address, "/")) == (200, 404)
        port = urlsplit(address).port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
        running.send_signal(end)
        assert running.wait(timeout=20) == code
    assert (tmp_path / "asked").read_text().splitlines()[-1].startswith("proxy ")


def test_the_browser_is_started_without_the_secret(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/opened.new; mv {tmp_path}/opened.new {tmp_path}/opened\n')
    browser.chmod(0o755)
    with program(tmp_path, BROWSER=f"{browser} %s") as running:
        address = first_line(running)
        first_line(running)
        while not (tmp_path / "opened").exists():
            assert running.poll() is None
        opened = (tmp_path / "opened").read_text().strip()
        assert urlsplit(address).path not in opened
        assert [get(opened), get(opened)] == [303, 404]


def test_a_page_that_is_killed_leaves_no_proxy_behind(tmp_path: Path) -> None:
    with program(tmp_path, "--no-browser") as running:
        first_line(running)
        asked = (tmp_path / "asked").read_text().split()
    (socket_path,) = (Path(argument.partition("=")[2]) for argument in asked if argument.startswith("--unix-socket="))
    end = time.monotonic() + 20
    while socket_path.parent.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with program(tmp_path, "--no-browser", f"--port={port}") as running:
            assert running.wait(timeout=20) == 2
            assert running.stderr is not None
            assert running.stderr.read() == f"error: --port {port}: Address already in use; choose another one\n"


@pytest.mark.parametrize("port", ["-1", "65536", "x", "8e3"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    with program(tmp_path, f"--port={port}") as running:
        assert running.wait(timeout=20) == 2
        assert running.stderr is not None
        assert f'"{port}" is no port' in running.stderr.read()
