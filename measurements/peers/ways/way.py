"""A way to share a GPU, as the tests see it: installed, asked for pods, changed, killed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from gpushare.api import names
from localcluster.kubectl import Object
from measurements.peers import logs
from tests.cluster.harness import Harness, Tenant

CLIENTS = 8
"""Clients on each GPU. NVIDIA's plugin gives each of them an eighth; so does every other way, to be comparable."""
CHANGED_CLIENTS = 4
"""Clients on each GPU after a change, in place of eight: each new client gets twice the threads and memory."""


IDLE = [sys.executable, "-c", "import time; time.sleep(3600)"]
"""The command of a pod that does nothing."""


@dataclass(frozen=True)
class Gpus:
    """Those of the node, all alike, and how many clients each of them is to have."""

    count: int
    memory_mib: int
    clients: int = CLIENTS

    @property
    def places(self) -> int:
        """The places on all GPUs together."""
        return self.count * self.clients


class Part(StrEnum):
    """What a way may have, and another not: tests that need it say so in their results."""

    NODE_AGENT = "node agent"
    """A pod on the node that offers the GPU to the kubelet: agent or plugin."""
    DAEMON = "MPS daemon"
    DAEMON_POD = "pod of the MPS daemon"
    LIMITS = "limits that can be changed"
    NAMESPACES = "GPU shared by several namespaces"


@dataclass(frozen=True)
class Promise:
    """The promise to each client: `threads` in percent of the SMs, `memory` in bytes. None: the way knows no
    such limit."""

    threads: int | None
    memory: int | None


@dataclass(frozen=True)
class Variables:
    """Variables of a client's environment, by which its program may ask for other limits than the pod has. Names and
    values.

    `past`: where CUDA looks for the daemon; None: the way has nothing that a variable leads past.
    """

    memory: str
    memory_raised: str
    memory_malformed: str
    threads: str
    past: str | None


MPS_VARIABLES = Variables(names.ENV_MEMORY, "0=140G", "0=garbage", names.ENV_THREADS, names.ENV_PIPE_DIRECTORY)


@dataclass(frozen=True)
class Daemon:
    """PIDs of the node. There is no server before the first client."""

    control: int
    server: int | None


class Way(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str:
        """The namespace of all its own pods."""
        ...

    @property
    def promise(self) -> Promise: ...

    @property
    def variables(self) -> Variables: ...

    @property
    def parts(self) -> frozenset[Part]: ...

    @property
    def standard(self) -> str:
        """The strictest Pod Security Standard that its clients meet: the tests run in namespaces that enforce it."""
        ...

    def install(self) -> dict[str, Any]:
        """Returns where it came from, once the node offers all places. Repeated, it completes what is missing."""
        ...

    def uninstall(self, successor: "Way") -> None:
        """Uninstalls the way, also one that was installed in part. What `successor` uses as well may stay: it is
        installed next."""
        ...

    def prepare(self, tenant: Tenant) -> None:
        """Makes a namespace ready for pods of this way."""
        ...

    def adapted(self, pod: Object) -> Object:
        """The pod, asking for its part of the GPU in this way."""
        ...

    def hold(self, tenant: "Clients") -> None:
        """Starts what else would start with the namespace's first pod, and returns when it is there."""
        ...

    def offered(self) -> int | None:
        """The parts that the node offers in all; None: nobody counts them."""
        ...

    def offer(self, clients: int) -> None:
        """Changes the number of clients on each GPU, and with it their limits. Returns when the node offers them."""
        ...

    def daemon(self) -> Daemon | None:
        """None: there is none at the moment, or never."""
        ...

    def restart(self, part: Part) -> None:
        """Deletes the pods of `part`, which come back by themselves, or replaces its process. Does not wait."""
        ...


class Clients(Tenant):
    """A namespace whose pods get their part of the GPU in one way, whatever share a test names."""

    def __init__(self, way: Way, tenant: Tenant) -> None:
        super().__init__(tenant.harness, tenant.name)
        self.way = way

    def pod(self, name: str, share: str = "", *arguments: str, **options: Any) -> Object:
        return self.way.adapted(super().pod(name, share, *arguments, **options))


NAMESPACES = "peers"
"""How the names of the clients' namespaces begin."""


@contextmanager
def clients(harness: Harness, way: Way, enforce: str | None = None) -> Iterator[Clients]:
    """`enforce`: another Pod Security Standard than the way's own. A failure says what the way's pods had written."""
    with harness.namespace(NAMESPACES, enforce or way.standard) as tenant:
        try:
            way.prepare(tenant)
            yield Clients(way, tenant)
        except Exception as error:
            error.add_note(logs.of_way(harness, way.namespace))
            raise
