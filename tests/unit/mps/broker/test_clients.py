"""Which processes count against a container's grant, and how long a container waits that held up the others."""

from gpushare.mps.broker.clients import LONGEST_PENALTY_SECONDS, AttachedClients

APP, OTHER = ("pod", "app"), ("pod", "other")


class Machine:
    """`started`: PID -> start time of the processes that live."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = {pid: 100 + pid for pid in range(1, 9)}

    def clients(self) -> AttachedClients:
        return AttachedClients(self.started.get, lambda: self.now)


def test_a_process_counts_once_and_until_it_ends() -> None:
    machine = Machine()
    clients = machine.clients()
    assert [clients.add(APP, 1), clients.add(APP, 1), clients.add(APP, 2)] == [True, False, True]
    assert (clients.attached(APP), clients.attached(OTHER)) == ({1: 2, 2: 1}, {})
    del machine.started[2]
    assert clients.attached(APP) == {1: 2}


def test_a_later_process_of_the_same_pid_is_another_one() -> None:
    machine = Machine()
    clients = machine.clients()
    clients.add(APP, 1)
    machine.started[1] = 999
    assert clients.attached(APP) == {}
    assert clients.add(APP, 1)
    assert clients.attached(APP) == {1: 1}


def test_a_process_that_has_ended_or_failed_to_attach_does_not_count() -> None:
    machine = Machine()
    clients = machine.clients()
    assert not clients.add(APP, 77), "it has ended"
    clients.add(APP, 1)
    clients.remove(APP, 1)
    assert clients.attached(APP) == {}


def test_the_clients_of_an_earlier_broker_count() -> None:
    clients = Machine().clients()
    clients.restore([(APP, 1), (OTHER, 2), (APP, 77)])
    assert (clients.attached(APP), clients.attached(OTHER)) == ({1: 1}, {2: 1})


def test_a_container_that_stalls_waits_twice_as_long_each_time() -> None:
    machine = Machine()
    clients = machine.clients()
    waits = []
    for _ in range(7):
        clients.stalled(APP)
        waits.append(clients.penalty(APP))
    assert waits == [4, 8, 16, 32, 64, 64, 64]
    assert clients.penalty(OTHER) == 0
    machine.now = 60.0
    assert clients.penalty(APP) == 4
    machine.now = 64.0 + LONGEST_PENALTY_SECONDS
    clients.forget_ended()
    clients.stalled(APP)
    assert clients.penalty(APP) == 4


def test_how_often_a_process_attached_is_known_and_a_restart_adds_nothing() -> None:
    machine = Machine()
    clients = machine.clients()
    for _ in range(3):
        clients.add(APP, 1)
    clients.restore([(APP, 1), (APP, 2)])
    assert (clients.attached(APP), clients.living()) == ({1: 3, 2: 1}, {1: 101, 2: 102})
    machine.started[1] = 999
    assert clients.attached(APP) == {2: 1}
