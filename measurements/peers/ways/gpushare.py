"""gpushare, of this very work tree: by slots, and by ResourceClaims."""

from typing import Any

from localcluster.kubectl import Object
from localcluster.stack import NAMESPACE
from measurements.gpu.stack import bring
from measurements.peers.ways.way import MPS_VARIABLES, Clients, Daemon, Gpus, Part, Promise, Way
from tests.cluster import claims
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of

RESERVED_MIB = 512
"""A share leaves this much of the GPU to the MPS server (`CONTEXT_RESERVE_MIB`)."""
SIZE = "part"
COMPONENTS = {Part.NODE_AGENT: "agent", Part.DAEMON_POD: "mps"}


class Gpushare:
    """Slots of one GpuShare."""

    name, namespace, standard = "gpushare", NAMESPACE, "restricted"
    variables, parts = MPS_VARIABLES, frozenset(Part)
    threads: int | None = None
    """Percent of the SMs for each client; None: an equal part."""

    def __init__(self, harness: Harness, gpus: Gpus) -> None:
        self._harness, self._gpus = harness, gpus
        self._memory_mib = gpus.memory_mib - RESERVED_MIB
        self._share = Share(harness, "peers")

    @property
    def promise(self) -> Promise:
        clients = self._gpus.clients
        return Promise(self.threads or 100 // clients, self._memory_mib // clients << 20)

    def install(self) -> dict[str, Any]:
        if not all(self._harness.component_ready(component) for component in ("operator", "webhook", "agent")):
            bring.upgrade()
        self.offer(self._gpus.clients)
        return {"repository": "this one", "installed": "helm install charts/gpushare --set computeMode=Leave"}

    def uninstall(self, successor: Way) -> None:
        if isinstance(successor, Gpushare):
            self._harness.kubectl.delete("gpushares", "--all", seconds=60)
        else:
            bring.uninstall(self._harness.stack)

    def prepare(self, tenant: Tenant) -> None:
        """Any namespace may use the share."""

    def hold(self, tenant: Clients) -> None:
        """The share's daemon is there before its clients."""

    def adapted(self, pod: Object) -> Object:
        pod["spec"]["containers"][0]["resources"] = {"limits": {self._share.resource: "1"}}
        return pod

    def offered(self) -> int | None:
        return self._harness.capacity(self._share.name)

    def offer(self, clients: int) -> None:
        threads = self.threads or 100 // clients
        memory = {"default": f"{self._memory_mib // clients}Mi"}
        self._apply(clients, threads={"default": threads, "max": threads}, memory=memory)
        self._share.wait_ready()
        places = self._gpus.count * clients
        wait_until(f"{places} parts are offered", lambda: self.offered() == places, explain=self.offered)

    def daemon(self) -> Daemon | None:
        try:
            state = daemon_of(self._harness, self._share)
        except (OSError, ValueError, StopIteration):
            return None
        return Daemon(state["controlPid"], state["serverPid"]) if state["controlPid"] else None

    def restart(self, part: Part) -> None:
        selector = f"--selector=app.kubernetes.io/component={COMPONENTS[part]}"
        self._harness.system.delete("pods", selector, wait=False)

    def _apply(self, clients: int, threads: dict[str, int], memory: dict[str, Any]) -> None:
        self._share.apply(per_gpu=clients, threads=threads, memory=memory)


class GpushareAllThreads(Gpushare):
    """Memory is divided, the SMs are not: each client may use all of them."""

    name, threads = "gpushare-all-threads", 100


class GpushareByClaims(Gpushare):
    """The same amounts as a named size of a share whose parts are claimed."""

    name = "gpushare-claims"

    def __init__(self, harness: Harness, gpus: Gpus) -> None:
        super().__init__(harness, gpus)
        self._share = Share(harness, "peers-claims")

    def prepare(self, tenant: Tenant) -> None:
        claims.wait_template(tenant, SIZE, self._share.name)

    def adapted(self, pod: Object) -> Object:
        return claims.with_claim(pod, resourceClaimTemplateName=f"{SIZE}.{self._share.name}")

    def offered(self) -> int | None:
        """Clients that the node's ResourceSlices have room for, taken or not."""
        slices = self._harness.kubectl.items("resourceslices")
        ours = [item["spec"] for item in slices if item["spec"]["driver"].endswith("gpushare.dev")]
        return sum(int(gpu["capacity"]["clients"]["value"]) for spec in ours for gpu in spec.get("devices", []))

    def _apply(self, clients: int, threads: dict[str, int], memory: dict[str, Any]) -> None:
        size = {"name": SIZE, "threads": threads["default"], "memory": memory["default"]}
        options: dict[str, Any] = {"delivery": "ResourceClaim", "sizes": [size]}
        self._share.apply(per_gpu=clients, threads=threads, memory=memory | {"max": memory["default"]}, **options)
