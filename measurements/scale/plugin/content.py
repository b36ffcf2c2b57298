"""What the cluster holds that the plugin is asked about: gpushare's own parts, agents that answer, and one user's pods.

Nothing runs: the pods are objects of the API server alone, and one server in our process answers for all agents.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpushare.api.quantity import MIB
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from gpushare.kube.client import NAMESPACES, Kube, Object
from gpushare.kube.resources import CORE_EVENTS, PODS
from measurements.scale import nodes as base

USERS = "ml"
POD = "train-0"
CLIENTS_PER_GPU = 4
GRANT = Grant(share="scale", threads=25, memory_mib=16384, processes=1)


async def fill(kube: Kube, nodes: int, address: tuple[str, int]) -> None:
    """`address`: where agents serve their metrics."""
    await base.fill(kube, nodes)
    await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": USERS}})
    parts = [("operator", 1), ("webhook", 2), ("agent", nodes)]
    await base.all_of(
        _run(kube, _part(part, number, address[1]), address[0]) for part, count in parts for number in range(count)
    )
    await base.all_of(_run(kube, _client(number), address[0]) for number in range(nodes))
    await kube.create(CORE_EVENTS, _event(), namespace=USERS)


async def _run(kube: Kube, pod: Object, address: str) -> None:
    metadata = pod["metadata"]
    await kube.create(PODS, pod, namespace=metadata["namespace"])
    ready = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "conditions": [ready], "podIP": address, "podIPs": [{"ip": address}]}
    await kube.patch(
        PODS, metadata["name"], {"status": status}, manager="kubelet", namespace=metadata["namespace"],
        subresource="status",
    )  # fmt: skip


def _part(part: str, number: int, port: int) -> Object:
    labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": part}
    container: Object = {"name": part, "image": "gpushare/operator:0.1.0"}
    if part == "agent":
        container["ports"] = [{"name": "metrics", "containerPort": port}]
    return _pod(f"{part}-{number:05}", base.NAMESPACE, number, container, labels)


def _client(number: int) -> Object:
    """The first of the pods on its node."""
    environment = [{"name": key, "value": value} for key, value in client_environment(GRANT, 143155).items()]
    container = {
        "name": "app",
        "image": "gpushare/workload:0.1.0",
        "env": environment,
        "resources": {"limits": {"gpushare.dev/scale": "1"}},
    }
    return _pod(f"train-{number}", USERS, number, container, {})


def _pod(name: str, namespace: str, number: int, container: Object, labels: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": base.name_of(number), "containers": [container], "terminationGracePeriodSeconds": 30},
    }


def _event() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "granted", "namespace": USERS},
        "involvedObject": {"kind": "Pod", "namespace": USERS, "name": POD},
        "reason": "GpuPartGranted",
        "message": "container app got 25% of the SMs, 16Gi of memory and 1 process",
        "reportingComponent": "gpushare-agent",
        "reportingInstance": "gpushare-agent",
        "action": "Grant",
        "type": "Normal",
    }


def metrics() -> bytes:
    """What one agent serves of 8 GPUs with 4 clients each. All agents name the GPUs of the first."""
    lines = []
    for index in range(base.GPUS):
        for client in range(CLIENTS_PER_GPU):
            pod = f"train-{index * CLIENTS_PER_GPU + client}"
            labels = f'{{namespace="{USERS}",pod="{pod}",container="app",share="scale",uuid="{base.uuid(0, index)}"}}'
            lines += [
                f"gpushare_container_memory_used_bytes{labels} {4096 * MIB}",
                f"gpushare_container_memory_granted_bytes{labels} {GRANT.memory_mib * MIB}",
                f"gpushare_container_threads_granted_ratio{labels} {GRANT.threads / 100}",
                f"gpushare_container_processes{labels} 1",
                f"gpushare_container_processes_granted{labels} 1",
            ]
    return "\n".join((*lines, "")).encode()


@contextmanager
def agents() -> Iterator[tuple[str, int]]:
    """Serves metrics() at the address that it gives. Kubernetes proxies no pod at a loopback address."""
    with ThreadingHTTPServer((own_address(), 0), _Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_address[0]), server.server_port
        server.shutdown()


def own_address() -> str:
    """This machine's own address, by which it would reach another. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address


class _Agent(BaseHTTPRequestHandler):
    text = metrics()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, format: str, *args: Any) -> None:
        pass
