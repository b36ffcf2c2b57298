"""Which attach is that of `cuInit`: the first one after a connection that said nothing."""

import socket

import pytest

from gpushare.mps.queue.looks import MOST_OF_POD, MOST_PODS, Looks

PROCESS, POD = (7, 70), "pod"


@pytest.fixture
def sock() -> socket.socket:
    return socket.socket()


def test_the_first_attach_after_a_look_is_that_of_the_process() -> None:
    looks = Looks()
    looks.looked(PROCESS, POD)
    assert [looks.is_context(PROCESS, POD) for _ in range(3)] == [False, True, True]


def test_a_program_that_replaces_itself_counts_anew() -> None:
    looks = Looks()
    for _ in range(2):
        looks.looked(PROCESS, POD)
        assert [looks.is_context(PROCESS, POD) for _ in range(2)] == [False, True]


def test_a_process_that_was_not_seen_to_look_asks_for_a_context() -> None:
    looks = Looks()
    looks.looked((8, 80), POD)
    looks.looked((7, 71), POD)
    assert looks.is_context(PROCESS, POD)


def test_a_look_whose_end_is_heard_after_the_attach_counts_once(sock: socket.socket) -> None:
    looks = Looks(hung_up=lambda _: True)
    with looks.listening(PROCESS, sock) as counts:
        assert counts()
        assert not looks.is_context(PROCESS, POD)
        assert not counts(), "it would count twice"
    assert looks.is_context(PROCESS, POD)


def test_a_connection_that_is_open_is_no_look(sock: socket.socket) -> None:
    looks = Looks(hung_up=lambda _: False)
    with looks.listening(PROCESS, sock) as counts:
        assert looks.is_context(PROCESS, POD)
        assert counts()


def test_a_pod_of_many_processes_forgets_its_own_alone() -> None:
    looks = Looks()
    looks.looked(PROCESS, POD)
    for pid in range(2 * MOST_OF_POD):
        looks.looked((1000 + pid, 1), "crowd")
    assert not looks.is_context(PROCESS, POD)
    known = [not looks.is_context((1000 + pid, 1), "crowd") for pid in range(2 * MOST_OF_POD)]
    assert known == [False] * MOST_OF_POD + [True] * MOST_OF_POD


def test_no_more_pods_are_remembered_than_a_node_has() -> None:
    looks = Looks()
    for number in range(MOST_PODS + 1):
        looks.looked(PROCESS, f"pod-{number}")
    assert looks.is_context(PROCESS, "pod-0")
    assert not looks.is_context(PROCESS, f"pod-{MOST_PODS}")
