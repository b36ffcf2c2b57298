"""A page by itself: that somebody keeps it is known, and asking for that ends nobody."""

import os
import subprocess
import sys

import pytest

from gpushare.mps.pages.page import Page

OPENS = """
import os, sys
print("began", flush=True)
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


@pytest.mark.parametrize("shared", [False, True])
def test_whoever_opens_a_page_again_and_again_ends_nobody(shared: bool) -> None:
    """Whoever has a lease meanwhile is sent a signal: by default one that ends the process."""
    page = Page("page", 1, shared=shared)
    theirs = page.to_read if shared else page.take_to_write()
    command = [sys.executable, "-c", OPENS, str(theirs), str(os.getpid())]
    with subprocess.Popen(command, pass_fds=[theirs], stdout=subprocess.PIPE) as opens:
        assert opens.stdout is not None
        assert opens.stdout.readline() == b"began\n"
        if not shared:
            os.close(theirs)
        answers = {page.is_kept() for _ in range(20_000)}
        opens.kill()
    assert True in answers, "they never met"
    page.close()
