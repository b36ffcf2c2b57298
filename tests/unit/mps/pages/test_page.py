"""A page by itself: that somebody keeps it is known, and asking for that ends nobody."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gpushare.mps.pages.page import Page

OPENS = """
import os, sys
while os.getppid() == int(sys.argv[2]):
    try:
        os.close(os.open(f"/proc/self/fd/{sys.argv[1]}", os.O_RDWR))
    except OSError:
        pass
"""


@pytest.mark.parametrize("shared", [False, True])
def test_a_page_is_kept_until_its_process_lets_go_of_it(shared: bool) -> None:
    page = Page("page", 1, shared=shared)
    given = page.take_to_write()
    other = os.dup(given)
    os.close(given)
    assert page.is_kept()
    os.close(other)
    assert not page.is_kept()
    page.close()


def test_whoever_opens_a_page_again_and_again_ends_nobody() -> None:
    """Whoever has a lease meanwhile is sent a signal: by default one that ends the process."""
    page, signals = Page("page", 1, shared=True), []
    os.close(page.take_to_write())
    before = signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
    command = [sys.executable, "-c", OPENS, str(page.to_read), str(os.getpid())]
    with subprocess.Popen(command, pass_fds=[page.to_read]) as opens:
        until = time.monotonic() + 30
        while not signals and time.monotonic() < until:
            page.is_kept()
        opens.kill()
    signal.signal(signal.SIGURG, before)
    assert signals, "they never met"
    page.close()
