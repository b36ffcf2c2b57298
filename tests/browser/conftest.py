"""One Chromium for all tests, and a page with a fleet for each."""

from collections.abc import Iterator

import pytest

from tests.browser.driver import Browser, chromium, missing
from tests.browser.fleet import MadeFleet


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    if absent := missing():
        pytest.fail(absent)
    with chromium() as browser:
        yield browser


@pytest.fixture
def fleet() -> MadeFleet:
    made = MadeFleet(3)
    made.past(60)
    return made


@pytest.fixture
def page(window: Browser, fleet: MadeFleet) -> Iterator[Browser]:
    """The page as it is opened; what it says in the console fails the test."""
    with fleet.served() as address:
        window.size(1400, 900)
        window.open(address)
        window.wait("return document.querySelectorAll('.row .client').length")
        window.log()
        yield window
        said = [message for message in window.log() if "/pod?" not in message]  # of a pod that is gone it says 404
        window.open("about:blank")
        assert said == []
