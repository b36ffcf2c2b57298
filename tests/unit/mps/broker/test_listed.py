"""Whose the processes are that the MPS server lists, by what the kernel says of each."""

import os

import pytest

from gpushare.mps.broker.admission import AttachAdmitted
from gpushare.mps.broker.clients import AttachedClients
from gpushare.mps.broker.daemon import BrokeredDaemon
from gpushare.mps.broker.listed import AttachDeniedError, ClientList
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import ClientGrant, RefusedAttach
from gpushare.process.procfs import Owner, read_start_of_running

APP, OTHER = ("pod", "app"), ("pod", "other")
PEER = (1, 1)


class ListingDaemon(BrokeredDaemon):
    """It lists this process, with four contexts."""

    async def contexts(self) -> dict[int, int]:
        return {os.getpid(): 4}


async def refused(listed: ClientList, container: tuple[str, str]) -> RefusedAttach | None:
    grant = ClientGrant(threads=10, memory_mib=1024, processes=8, contexts=4)
    try:
        await listed.check_listed(PEER, container, AttachAdmitted(Owner("pod", ""), container[1], grant))
    except AttachDeniedError as error:
        return error.refused.reason
    return None


@pytest.mark.parametrize(
    ("attached", "looked"),
    [
        pytest.param(True, False, id="it attached"),
        pytest.param(False, True, id="another let it in, and the earlier one's end is known"),
    ],
)
async def test_contexts_count_for_no_earlier_process_of_the_same_pid(gpu: GpuDir, attached: bool, looked: bool) -> None:
    """The earlier one was another container's, and still counts there, since somebody holds its socket."""
    own, started = os.getpid(), read_start_of_running(os.getpid())
    assert started is not None
    clients = AttachedClients(read_start_of_running, lambda: 0.0, frozenset)
    clients.passed(OTHER, (own, started - 1), 11)
    if attached:
        clients.add(APP, (own, started))
    if looked:
        clients.forget_ended()
    listed = ClientList(ListingDaemon(gpu), clients, lambda _: APP, lambda _: None)
    assert await refused(listed, APP) is RefusedAttach.TOO_MANY_CONTEXTS
    assert await refused(listed, OTHER) is None
