"""The queue of what outlives a broker: how much it holds, and for whom there is always room."""

import socket

from gpushare.mps.broker.kept_sockets import MOST_CLIENTS, MOST_QUEUED, UnderWay
from gpushare.mps.wire import QueuedKind, QueuedSocket

CLIENT, PASSED = (QueuedSocket(kind=kind, pid=2**22, started=2**40) for kind in (QueuedKind.CLIENT, QueuedKind.PASSED))


def test_clients_beyond_the_bound_are_not_kept_and_sockets_to_mps_are() -> None:
    """That is also less than a kernel's socket takes, with its default buffer."""
    putting, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with putting, taking, sock, peer:
        for end in (putting, taking):
            end.setblocking(False)
        under_way = UnderWay((putting, taking))
        kept = [under_way.put(sock, CLIENT, pod=f"pod-{number}") for number in range(MOST_CLIENTS + 5)]
        assert [bool(number) for number in kept] == [True] * MOST_CLIENTS + [False] * 5
        passed = [under_way.put(sock, PASSED) for _ in range(MOST_QUEUED - MOST_CLIENTS)]
        assert all(passed)
        assert not under_way.put(sock, PASSED)

        under_way.take_out(kept[0])
        assert not under_way.put(sock, CLIENT), "the room is for sockets to MPS"
        under_way.take_out(passed[0])
        left = UnderWay((putting, taking)).left()
        for _, copy in left:
            copy.close()
        assert [queued.number for queued, _ in left] == [*passed[1:], *kept[1:MOST_CLIENTS]]
