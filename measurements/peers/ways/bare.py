"""The way without any part of Kubernetes that knows GPUs: pods that NVIDIA's container runtime gives all GPUs.

Their programs share the GPU in time slices, or as clients of one MPS daemon that somebody has started on the node, as
CUDA's documentation says. Nobody counts the pods, and nobody limits them.
"""

from pathlib import Path
from typing import Any

from gpushare.agent.gpus.driver import control_program_dir
from localcluster.errors import LocalClusterError
from localcluster.kubectl import Object
from measurements.peers.rehearsal import driver
from measurements.peers.ways.processes import CONTROL, daemon_in, start_in_node
from measurements.peers.ways.way import MPS_VARIABLES, Clients, Daemon, Part, Promise, Way
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.node import kill_if_there
from tests.cluster.rights.runtime_class import offer_runtime_class

DIRECTORY = "/run/peers-mps"
"""A directory on the node: `pipe` for the clients, `log` for the daemon."""
PIPES = f"{DIRECTORY}/pipe"


class BareSlices:
    name, namespace, standard = "bare-slices", "none", "restricted"
    promise = Promise(None, None)
    variables, parts = MPS_VARIABLES, frozenset({Part.NAMESPACES})

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def install(self) -> dict[str, Any]:
        if self._harness.stack.simulated:
            driver.begin(self._harness)
        offer_runtime_class(self._harness, self._harness.stack.simulated)
        return {"repository": "none", "installed": "RuntimeClass nvidia; pods with NVIDIA_VISIBLE_DEVICES=all"}

    def uninstall(self, successor: Way) -> None:
        if self._harness.stack.simulated and not isinstance(successor, BareSlices):
            driver.end(self._harness)

    def prepare(self, tenant: Tenant) -> None:
        """Every namespace has the RuntimeClass."""

    def hold(self, tenant: Clients) -> None:
        """A daemon is there before its clients."""

    def adapted(self, pod: Object) -> Object:
        [container] = pod["spec"]["containers"]
        container["resources"] = {}
        container["env"] = [*container["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        pod["spec"]["runtimeClassName"] = "nvidia"
        return pod

    def offered(self) -> int | None:
        return None

    def offer(self, clients: int) -> None:
        raise LocalClusterError(f"{self.name} has no number of clients to set to {clients}")

    def daemon(self) -> Daemon | None:
        return None

    def restart(self, part: Part) -> None:
        raise LocalClusterError(f"{self.name} has no {part}")


class BareMps(BareSlices):
    name, standard = "bare-mps", "privileged"
    """A directory of the node, and its IPC namespace: no stricter standard admits them."""
    parts = frozenset({Part.DAEMON, Part.NAMESPACES})

    def install(self) -> dict[str, Any]:
        origin = super().install()
        self._start_daemon()
        how = "; nvidia-cuda-mps-control -d on the node; pods with its pipe directory and hostIPC"
        return origin | {"installed": origin["installed"] + how}

    def uninstall(self, successor: Way) -> None:
        self._end_daemon()
        super().uninstall(successor)

    def adapted(self, pod: Object) -> Object:
        pod = super().adapted(pod)
        [container] = pod["spec"]["containers"]
        container["env"] = [*container["env"], {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": PIPES}]
        container["volumeMounts"] = [{"name": "pipes", "mountPath": PIPES}]
        pod["spec"]["volumes"] = [{"name": "pipes", "hostPath": {"path": PIPES}}]
        pod["spec"]["hostIPC"] = True
        return pod

    def daemon(self) -> Daemon | None:
        return daemon_in(self._harness)

    def restart(self, part: Part) -> None:
        if part is not Part.DAEMON:
            super().restart(part)
        self._end_daemon()
        self._start_daemon()

    def _start_daemon(self) -> None:
        if self.daemon():
            return
        environment = {"CUDA_MPS_PIPE_DIRECTORY": PIPES, "CUDA_MPS_LOG_DIRECTORY": f"{DIRECTORY}/log"}
        for path in environment.values():
            self._harness.in_node(path).mkdir(parents=True, exist_ok=True)
        programs = control_program_dir(Path("/"))
        if self._harness.stack.simulated:
            programs, environment = driver.PROGRAMS, environment | driver.ENVIRONMENT
        if programs is None:
            raise LocalClusterError(f"this machine has no {CONTROL}")
        start_in_node(self._harness, [str(programs / CONTROL), "-d"], environment)
        wait_until("the MPS daemon", lambda: self.daemon() and self._harness.in_node(f"{PIPES}/control").exists())

    def _end_daemon(self) -> None:
        if daemon := self.daemon():
            for pid in (daemon.control, daemon.server):
                if pid is not None:
                    kill_if_there(self._harness, pid)
            wait_until("the MPS daemon has ended", lambda: self.daemon() is None)
