"""A way to share a GPU, as the tests see it: installed, asked for pods, changed, killed. And gpushare's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from localcluster.kubectl import Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness, Share, Tenant
from tests.cluster.node import daemon_of
from tests.gpu.stack import bring

CLIENTS = 8
"""On the one GPU. NVIDIA's plugin gives each of them an eighth; so does every other way, to be comparable."""
RESERVED_MIB = 512
"""A share leaves this much of the GPU to the MPS server (`CONTEXT_RESERVE_MIB`)."""


@dataclass(frozen=True)
class Promise:
    """To each client: `threads` in percent of the SMs, `memory` in bytes. None: the way knows no such limit."""

    threads: int | None
    memory: int | None


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
        """Where all its own pods are."""
        ...

    @property
    def promise(self) -> Promise: ...

    @property
    def under_mps(self) -> bool: ...

    def install(self) -> dict[str, Any]:
        """Returns where it came from, once the node offers `CLIENTS`."""
        ...

    def uninstall(self) -> None:
        """Also what was installed in part."""
        ...

    def adapted(self, pod: Object) -> Object:
        """The pod, asking for its part of the GPU in this way."""
        ...

    def offered(self) -> int:
        """The parts that the node offers in all."""
        ...

    def offer(self, clients: int) -> None:
        """Changes the number of clients on the GPU, and with it their limits. Returns when the node offers them."""
        ...

    def daemon(self) -> Daemon | None:
        """None: there is none at the moment, or never."""
        ...

    def restart(self, part: str) -> None:
        """Deletes the pods of `part` (`node agent` or `daemon`), which come back by themselves. Does not wait."""
        ...


class Clients(Tenant):
    """A namespace whose pods get their part of the GPU in one way, whatever share a test names."""

    def __init__(self, way: Way, tenant: Tenant) -> None:
        super().__init__(tenant.harness, tenant.name)
        self.way = way

    def pod(self, name: str, share: str = "", *arguments: str, **options: Any) -> Object:
        return self.way.adapted(super().pod(name, share, *arguments, **options))


@contextmanager
def clients(harness: Harness, way: Way, enforce: str = "restricted") -> Iterator[Clients]:
    with harness.namespace("peers", enforce) as tenant:
        yield Clients(way, tenant)


class Gpushare:
    """Slots of one GpuShare."""

    name, namespace, under_mps = "gpushare", NAMESPACE, True

    def __init__(self, harness: Harness, memory_mib: int) -> None:
        self._harness, self._memory_mib = harness, memory_mib - RESERVED_MIB
        self._share = Share(harness, "peers")

    @property
    def promise(self) -> Promise:
        return Promise(100 // CLIENTS, self._memory_mib // CLIENTS << 20)

    def install(self) -> dict[str, Any]:
        bring.upgrade()
        self.offer(CLIENTS)
        return {"repository": "this one", "installed": "helm install charts/gpushare --set computeMode=Leave"}

    def uninstall(self) -> None:
        bring.uninstall(self._harness.stack)

    def adapted(self, pod: Object) -> Object:
        pod["spec"]["containers"][0]["resources"] = {"limits": {self._share.resource: "1"}}
        return pod

    def offered(self) -> int:
        return self._harness.capacity(self._share.name)

    def offer(self, clients: int) -> None:
        threads = 100 // clients
        memory = {"default": f"{self._memory_mib // clients}Mi"}
        self._share.apply(per_gpu=clients, threads={"default": threads, "max": threads}, memory=memory)
        self._share.wait_ready()
        self._share.wait_capacity(clients)

    def daemon(self) -> Daemon | None:
        try:
            state = daemon_of(self._harness, self._share)
        except (OSError, ValueError, StopIteration):
            return None
        return Daemon(state["controlPid"], state["serverPid"]) if state["controlPid"] else None

    def restart(self, part: str) -> None:
        component = {"node agent": "agent", "daemon": "mps"}[part]
        selector = f"--selector=app.kubernetes.io/component={component}"
        self._harness.system.delete("pods", selector, wait=False)
