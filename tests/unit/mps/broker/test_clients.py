"""Which processes count against a container's grant, and how long a container waits that held up the others."""

from gpushare.mps.broker.clients import LONGEST_PENALTY_SECONDS, AttachedClients

APP, OTHER = ("pod", "app"), ("pod", "other")


class Machine:
    """`started`: PID -> start time of the processes that live. `open`: the sockets that somebody holds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = {pid: 100 + pid for pid in range(1, 9)}
        self.open: set[int] = set()

    def clients(self) -> AttachedClients:
        return AttachedClients(self.started.get, lambda: self.now, lambda inodes: frozenset(inodes) & self.open)


def process(pid: int) -> tuple[int, int]:
    return pid, 100 + pid


def test_a_process_counts_once_and_until_it_ends() -> None:
    machine = Machine()
    clients = machine.clients()
    assert [clients.add(APP, process(pid)) for pid in (1, 1, 2)] == [True, False, True]
    assert (clients.attached(APP), clients.attached(OTHER)) == ({process(1), process(2)}, frozenset())
    del machine.started[2]
    assert clients.attached(APP) == {process(1)}


def test_an_ended_process_counts_while_somebody_holds_its_socket() -> None:
    """It attached for another one, which speaks on that socket."""
    machine = Machine()
    clients = machine.clients()
    for inode in (11, 12):
        clients.add(APP, process(1))
        clients.passed(APP, process(1), inode)
    machine.open = {12}
    del machine.started[1]
    assert (clients.attached(APP), clients.living()) == ({process(1)}, {})
    clients.forget_ended()
    assert clients.attached(APP) == {process(1)}
    machine.open = {11}
    assert clients.attached(APP) == frozenset(), "the inode of a socket that was closed may be another's"


def test_a_process_that_ended_before_it_got_its_socket_counts_by_it() -> None:
    machine = Machine()
    clients = machine.clients()
    clients.add(APP, process(1))
    del machine.started[1]
    clients.forget_ended()
    machine.open = {11}
    clients.passed(APP, process(1), 11)
    assert clients.attached(APP) == {process(1)}


def test_a_later_process_of_the_same_pid_is_another_one() -> None:
    machine = Machine()
    clients = machine.clients()
    clients.add(APP, process(1))
    machine.started[1] = 999
    assert clients.attached(APP) == frozenset()
    assert clients.add(APP, (1, 999))
    assert (clients.attached(APP), clients.has_attached(process(1))) == ({(1, 999)}, False)


def test_a_process_that_failed_to_attach_does_not_count() -> None:
    clients = Machine().clients()
    clients.add(APP, process(1))
    clients.remove(APP, process(1))
    assert (clients.attached(APP), clients.has_attached(process(1))) == (frozenset(), False)


def test_the_clients_of_an_earlier_broker_count() -> None:
    clients = Machine().clients()
    clients.restore([(APP, 1), (OTHER, 2), (APP, 77)])
    assert (clients.attached(APP), clients.attached(OTHER)) == ({process(1)}, {process(2)})
    assert ([clients.container_of(process(pid)) for pid in (1, 2, 77)], clients.has_attached(process(2))) == (
        [APP, OTHER, None],
        True,
    )


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
