"""A list that other processes reach as a proxy, as multiprocessing.Manager().list() gives it.

Manager() itself starts a process that outlives a parent which is killed. Here the same server runs in a worker, and so
ends with its team; its socket has no file that could stay behind.
"""

import multiprocessing
import threading
import uuid
from multiprocessing.managers import ListProxy, SyncManager
from typing import Any

from gpushare_workload.worker import Worker
from gpushare_workload.workers import START_SECONDS, Team

UNTIL_ASKED = 24 * 3600.0


def start(team: Team, length: int) -> "ListProxy[Any]":
    """A list of that many None, served by a worker of `team`. Its methods take and give copies, pickled."""
    team.start(serve, name="manager")
    _, address = team.receive(START_SECONDS)
    manager = SyncManager(address, bytes(multiprocessing.current_process().authkey))
    manager.connect()
    return manager.list([None] * length)


def serve(worker: Worker) -> None:
    # An abstract socket: it vanishes with the process.
    manager = SyncManager(f"\0gpushare-workload-{uuid.uuid4()}", bytes(multiprocessing.current_process().authkey))
    server = manager.get_server()
    threading.Thread(target=server.serve_forever, name="manager", daemon=True).start()
    worker.send(server.address)
    while not worker.stop.wait(UNTIL_ASKED):
        pass
