"""A list that other processes reach through a proxy, like multiprocessing.Manager().list().

Guarantees: the server ends with its team, and its socket leaves no file. Manager() itself would start a process that
outlives a killed parent, so the same server runs in a worker here.
"""

import multiprocessing
import threading
import uuid
from multiprocessing.managers import ListProxy, SyncManager
from typing import Any

from gpushare_workload.processes.team import START_SECONDS, Team
from gpushare_workload.processes.worker import Worker

WAIT_SECONDS = 24 * 3600.0
"""Seconds of one wait; the server runs until it is asked to end."""


def start(team: Team, length: int) -> "ListProxy[Any]":
    """A list of `length` None, served by a worker of `team`. Its methods take and return pickled copies."""
    team.start(serve, name="manager")
    _, address = team.receive(START_SECONDS)
    manager = SyncManager(address, bytes(multiprocessing.current_process().authkey))
    manager.connect()
    return manager.list([None] * length)


def serve(worker: Worker) -> None:
    """The target of the worker that serves the list."""
    # An abstract socket: it disappears with the process.
    manager = SyncManager(f"\0gpushare-workload-{uuid.uuid4()}", bytes(multiprocessing.current_process().authkey))
    server = manager.get_server()
    threading.Thread(target=server.serve_forever, name="manager", daemon=True).start()
    worker.send(server.address)
    while not worker.stop.wait(WAIT_SECONDS):
        pass
