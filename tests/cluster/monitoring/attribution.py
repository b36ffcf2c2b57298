"""dcgm-exporter's own mapping of GPUs to pods, as an image that a test runs on the node (attribution.go).

Its packages are internal to its module, so the program is laid over a copy of its source, which stays as it is.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from localcluster.kubectl import Kubectl, Object
from localcluster.paths import cache_root
from localcluster.programs.golang import find_go
from localcluster.programs.oci import write_static_image
from tests.cluster.harness import Harness, wait_until

IMAGE = "localhost/dcgm-attribution:1"
SOCKETS = "/var/lib/kubelet/pod-resources"
BUILD_SECONDS = 1800
_PROGRAM = Path(__file__).with_name("attribution.go")
_LINKED = "-s -w -extldflags=-static"


def build(source: Path, go_dcgm: Path | None, directory: Path) -> Path:
    """The image as an OCI archive. `source`: a copy of github.com/NVIDIA/dcgm-exporter. `go_dcgm`: one of
    github.com/NVIDIA/go-dcgm, in place of the module that it names. libdcgm is looked up when DCGM is started,
    which never happens here.
    """
    overlay, modules = directory / "overlay.json", directory / "go.mod"
    laid = {str(source / "internal" / "attribution" / "main.go"): str(_PROGRAM)}
    overlay.write_text(json.dumps({"Replace": laid}))
    shutil.copy(source / "go.mod", modules)
    shutil.copy(source / "go.sum", directory / "go.sum")
    go = str(find_go(cache_root()))
    if go_dcgm is not None:
        replaced = f"-replace=github.com/NVIDIA/go-dcgm={go_dcgm}"
        subprocess.run([go, "mod", "edit", replaced, str(modules)], timeout=60, check=True)
    command = [
        go, "build", f"-overlay={overlay}", f"-modfile={modules}", f"-ldflags={_LINKED}",
        "-o", str(directory / "attribution"), "./internal/attribution",
    ]  # fmt: skip
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false", "CGO_ENABLED": "1"}
    subprocess.run(command, cwd=source, env=environment, timeout=BUILD_SECONDS, check=True)
    archive = directory / "attribution.tar"
    write_static_image(archive, IMAGE, directory / "attribution")
    return archive


@dataclass(frozen=True)
class Series:
    """What dcgm-exporter says of one GPU: `labels` are those that name a pod."""

    value: float
    labels: Mapping[str, str]


def start(harness: Harness, namespace: str, name: str, uuids: Sequence[str], **config: Any) -> Kubectl:
    """A pod that exports these GPUs under that configuration: fields of dcgm-exporter's Config."""
    kubectl = harness.kubectl.within(namespace)
    kubectl.create(_pod(name, uuids, config))
    return kubectl


def exported(
    harness: Harness, namespace: str, name: str, uuids: Sequence[str], **config: Any
) -> dict[str, list[Series]]:
    """The series of each GPU under that configuration, by UUID."""
    kubectl = start(harness, namespace, name, uuids, **config)

    def ended() -> bool:
        return kubectl.get("pod", name)["status"].get("phase") in ("Succeeded", "Failed")

    wait_until(f"{name} has exported", ended, 60, lambda: kubectl.logs(name))
    series: dict[str, list[Series]] = {uuid: [] for uuid in uuids}
    for family in text_string_to_metric_families(_exposition(kubectl.logs(name))):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if value and key in _OF_PODS}
            series[sample.labels["UUID"]].append(Series(sample.value, labels))
    return series


_OF_PODS = ("namespace", "pod", "container", "pod_uid", "vgpu", "dra_claim_name")


def _exposition(log: str) -> str:
    """Its own log lines are in the same stream."""
    return "".join(f"{line}\n" for line in log.splitlines() if line.startswith(("#", "DCGM_")))


def _pod(name: str, uuids: Sequence[str], config: Mapping[str, Any]) -> Object:
    """A pod as dcgm-exporter's chart runs it: the kubelet's sockets, and an account that may read pods."""
    given = {
        "Kubernetes": True,
        "KubernetesGPUIdType": "uid",
        "PodResourcesKubeletSocket": f"{SOCKETS}/kubelet.sock",
        **config,
    }
    container = {
        "name": "exporter",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "env": [{"name": "GPUS", "value": json.dumps(uuids)}, {"name": "CONFIG", "value": json.dumps(given)}],
        "volumeMounts": [{"name": "sockets", "mountPath": SOCKETS, "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "exporter",
            "containers": [container],
            "volumes": [{"name": "sockets", "hostPath": {"path": SOCKETS, "type": "Directory"}}],
        },
    }


def account(namespace: str) -> list[Object]:
    """The ServiceAccount, and what it may read."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["get", "list", "watch"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "exporter"}
    subject = {"kind": "ServiceAccount", "name": "exporter", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "exporter", "namespace": namespace}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "exporter"}, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "exporter"},
            "roleRef": role,
            "subjects": [subject],
        },
    ]
