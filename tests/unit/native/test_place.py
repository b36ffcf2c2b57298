"""A program that waits for a place on the GPU, before a stand-in of the driver: what it hears, what ends its wait."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native import build
from tests.native.paced_client import PacedClient
from tests.native.pages_broker import GIVEN, NOT_NEEDED, PLACE, REFUSED, WAITING, PagesBroker

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")

MAKE = {
    "primary": "primary()",
    "primary, looked up": "primary(found('cuDevicePrimaryCtxRetain'))",
    "created": "context(cuda.cuCtxCreate_v2)",
    "created, looked up": "context(found('cuCtxCreate', 11000))",
    "created with affinities": "context(cuda.cuCtxCreate_v3, P(), ctypes.c_int(0))",
    "created with affinities, looked up": "context(found('cuCtxCreate', 12000), P(), ctypes.c_int(0))",
    "created with parameters": "context(cuda.cuCtxCreate_v4, P())",
    "created with parameters, looked up": "context(found('cuCtxCreate', 13000), P())",
}
CONTEXTS = "cuda.driverContexts()"


class Waiter(PacedClient):
    """A process of class Normal after cuInit, and its stderr."""

    def __init__(self, libraries: Path, directory: Path) -> None:
        self._errors = directory / "errors"
        with self._errors.open("w") as errors:
            super().__init__(libraries, directory / "attach", errors, GPUSHARE_CLASS="Normal")
        assert self("cuda.cuInit(0)") == 0

    def lines(self) -> list[str]:
        return self._errors.read_text().splitlines()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.container_with_classes(tmp_path_factory.mktemp("container"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PagesBroker]:
    with PagesBroker(tmp_path / "attach") as broker:
        broker.has_places(2)
        yield broker


@pytest.fixture
def waiter(broker: PagesBroker, libraries: Path, tmp_path: Path) -> Iterator[Waiter]:
    with Waiter(libraries, tmp_path) as waiter:
        yield waiter


def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


def asks(broker: PagesBroker, waiter: Waiter, call: str = "primary()") -> None:
    """The process makes a context, and its broker has heard of it."""
    until(lambda: waiter.pid not in broker.waiting)
    waiter.tell(call)
    until(lambda: waiter.pid in broker.waiting)


def test_without_a_queue_nobody_is_asked(broker: PagesBroker, waiter: Waiter) -> None:
    broker.has_places(0)
    assert waiter(f"[primary(), {CONTEXTS}]") == [0, 1]
    assert PLACE not in broker.processes[waiter.pid].asked
    assert broker.waiting == {}


@pytest.mark.parametrize("call", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("state", [GIVEN, NOT_NEEDED])
def test_a_place_at_once_is_silent_and_one_context(broker: PagesBroker, waiter: Waiter, call: str, state: int) -> None:
    asks(broker, waiter, call)
    broker.say(waiter.pid, state)
    assert waiter.hear() == 0
    assert waiter(CONTEXTS) == 1
    assert waiter.lines() == []
    until(lambda: broker.waiting == {})


def test_who_waits_is_told_at_each_change_and_goes_on(broker: PagesBroker, waiter: Waiter) -> None:
    asks(broker, waiter)
    for position, waiting in ((3, 7), (3, 8), (1, 6)):
        broker.say(waiter.pid, WAITING, position, waiting)
    until(lambda: len(waiter.lines()) == 2)
    assert not waiter.has_answered()
    assert waiter.lines() == [
        "gpushare: this program waits for a place on the GPU: number 3 of 7 that wait; all 2 places are taken. "
        "Ctrl-C gives up.",
        "gpushare: this program waits for a place on the GPU: number 1 of 6 that wait; all 2 places are taken. "
        "Ctrl-C gives up.",
    ]
    broker.say(waiter.pid, GIVEN)
    assert waiter.hear() == 0
    assert waiter(CONTEXTS) == 1
    assert waiter.lines()[2:] == ["gpushare: this program has a place on the GPU now, after 0 s"]


def test_a_primary_context_that_is_there_needs_no_place(broker: PagesBroker, waiter: Waiter) -> None:
    asks(broker, waiter)
    broker.say(waiter.pid, GIVEN)
    assert waiter.hear() == 0
    assert waiter("primary()") == 0
    assert waiter("[cuda.cuDevicePrimaryCtxRelease_v2(0), cuda.cuDevicePrimaryCtxRelease_v2(0)]") == [0, 0]
    asks(broker, waiter)


@pytest.mark.parametrize("call", MAKE.values(), ids=MAKE)
def test_a_refusal_is_an_error_and_no_context(broker: PagesBroker, waiter: Waiter, call: str) -> None:
    asks(broker, waiter, call)
    broker.say(waiter.pid, WAITING, 1, 1)
    broker.say(waiter.pid, REFUSED)
    assert waiter.hear() == 808
    assert waiter(CONTEXTS) == 0
    assert waiter.lines()[1:] == ["gpushare: no place on the GPU became free in time (CUDA error 808), after 0 s"]
    asks(broker, waiter, call)
    broker.say(waiter.pid, GIVEN)
    assert waiter.hear() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_a_signal_with_a_handler_ends_the_wait(broker: PagesBroker, waiter: Waiter, number: signal.Signals) -> None:
    waiter(f"__import__('signal').signal({int(number)}, lambda *_: globals().update(CAME=1)) and 0")
    asks(broker, waiter)
    broker.say(waiter.pid, WAITING, 1, 1)
    until(lambda: len(waiter.lines()) == 1)
    os.kill(waiter.pid, number)
    assert waiter.hear(2) == 808
    assert waiter(f"[CAME, {CONTEXTS}]") == [1, 0]
    assert "a signal came" in waiter.lines()[-1]
    until(lambda: broker.waiting == {})


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGUSR1, signal.SIGWINCH, signal.SIGRTMIN + 3])
def test_other_signals_are_handled_within_a_second_and_the_wait_goes_on(
    broker: PagesBroker, waiter: Waiter, tmp_path: Path, number: int
) -> None:
    """By a handler of Python's, which writes to a descriptor at once, whatever call its thread is in."""
    waiter("globals().update(R=os.pipe(), S=__import__('signal')) or os.set_blocking(R[1], False)")
    waiter(f"S.signal({int(number)}, lambda *_: None) and 0")
    waiter("S.set_wakeup_fd(R[1])")
    waiter(f"threading.Thread(target=lambda: (os.read(R[0], 1), open({str(tmp_path / 'came')!r}, 'w'))).start() or 0")
    asks(broker, waiter)
    os.kill(waiter.pid, number)
    until(lambda: (tmp_path / "came").exists(), 3)
    assert not waiter.has_answered()
    os.kill(waiter.pid, signal.SIGSTOP)
    os.kill(waiter.pid, signal.SIGCONT)
    broker.say(waiter.pid, GIVEN)
    assert waiter.hear() == 0


def test_a_wait_goes_on_at_the_broker_that_comes_next(broker: PagesBroker, waiter: Waiter, tmp_path: Path) -> None:
    asks(broker, waiter)
    broker.say(waiter.pid, WAITING, 2, 2)
    until(lambda: len(waiter.lines()) == 1)
    broker.close()
    broker.waiting[waiter.pid].shutdown(socket.SHUT_RDWR)
    time.sleep(0.6)
    assert not waiter.has_answered()
    with PagesBroker(tmp_path / "attach") as following:
        following.has_places(2)
        until(lambda: waiter.pid in following.waiting)
        following.say(waiter.pid, WAITING, 1, 1)
        following.say(waiter.pid, GIVEN)
        assert waiter.hear() == 0
    assert [line[:60] for line in waiter.lines()][-1].startswith("gpushare: this program has a place")


def test_a_broker_that_stays_away_is_told_and_a_signal_ends_that_wait(broker: PagesBroker, waiter: Waiter) -> None:
    waiter(f"__import__('signal').signal({int(signal.SIGINT)}, lambda *_: None) and 0")
    asks(broker, waiter)
    broker.close()
    broker.waiting[waiter.pid].shutdown(socket.SHUT_RDWR)
    until(lambda: len(waiter.lines()) == 1, 8)
    assert "the GPU takes no program now" in waiter.lines()[0]
    assert not waiter.has_answered()
    os.kill(waiter.pid, signal.SIGINT)
    assert waiter.hear(2) == 808
    assert waiter(CONTEXTS) == 0


def test_a_reader_that_does_not_read_holds_up_no_wait(broker: PagesBroker, libraries: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (
        os.fdopen(writing, "w") as errors,
        PacedClient(libraries, tmp_path / "attach", errors, GPUSHARE_CLASS="Normal") as client,
    ):
        os.set_blocking(writing, False)
        while True:
            try:
                os.write(writing, bytes(4096))
            except BlockingIOError:
                break
        os.set_blocking(writing, True)
        assert client("cuda.cuInit(0)") == 0
        client.tell("primary()")
        until(lambda: client.pid in broker.waiting)
        broker.say(client.pid, WAITING, 1, 1)
        broker.say(client.pid, GIVEN)
        assert client.hear() == 0
    os.close(reading)
