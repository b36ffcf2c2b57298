"""Installs gpushare on a cluster: an embedded one with simulated GPUs, or the one of KUBECONFIG.

The demo and the cluster tests share this, so that the demo shows the tested installation.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.cluster import cluster
from localcluster.doctor import require
from localcluster.errors import LocalClusterError
from localcluster.images import buildah
from localcluster.kubectl import Kubectl, run
from localcluster.packages import ensure_packages
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import build

NAMESPACE = "gpushare-system"
RELEASE = "gpushare"
CHART = REPOSITORY / "charts" / "gpushare"
PLUGIN = {
    "kubectl-gpushare": ("gpushare.kubectl.main", "main"),
    "kubectl_complete-gpushare": ("gpushare.kubectl.main", "completion"),
}
"""Programs by which kubectl finds the plugin and its completion: (module, function)."""
_TAGGED = re.compile(r"(?P<repository>[^@:]+(:[0-9]+/[^@:]+)?):(?P<tag>[^@:/]+)(@(?P<digest>sha256:[0-9a-f]{64}))?")
"""An image with a tag; by its digest, too, as `make images REGISTRY=…` prints it."""


@dataclass(frozen=True, slots=True)
class Stack:
    environment: Mapping[str, str]
    operator_image: str
    workload_image: str
    simulated: bool
    embedded: str | None
    """Name of the embedded cluster, or None for the user's own."""
    chart: Path = CHART
    """The chart of the release that the images are of."""

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.environment)

    def helm(self, *arguments: str, seconds: float = 180) -> str:
        return run(["helm", *arguments], self.environment, seconds=seconds)


def embedded(name: str) -> Stack:
    """Builds what is missing, starts the cluster, and loads the images. Idempotent."""
    require()
    ensure_packages(cache_root())
    programs = build(cache_root())
    layout = cluster.up(name, programs)
    built = buildah.build_images(cache_root())
    cluster.load_built(layout, built)
    put_plugin(layout.tools)
    return Stack(
        cluster.environment(layout),
        built["operator"].image,
        built["workload"].image,
        simulated=True,
        embedded=name,
    )


def put_plugin(directory: Path) -> None:
    """Makes `kubectl gpushare` work where `directory` is on the PATH, with the packages of this very Python."""
    directory.mkdir(exist_ok=True)
    for name, (module, function) in PLUGIN.items():
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
        program.chmod(0o755)


def own(environment: Mapping[str, str] = os.environ) -> Stack:
    """The user's cluster, images from OPERATOR_IMAGE and WORKLOAD_IMAGE. Raises LocalClusterError without them.

    GPUs are simulated if no node has an NVIDIA GPU, by its label or its capacity.
    """
    operator, workload = (_image(environment, name) for name in ("OPERATOR_IMAGE", "WORKLOAD_IMAGE"))
    kubectl = Kubectl(environment)
    nodes = kubectl.items("nodes")
    real = any(_has_gpu(node) for node in nodes)
    return Stack(
        environment,
        operator,
        workload,
        simulated=not real,
        embedded=None,
    )


def _image(environment: Mapping[str, str], name: str) -> str:
    image = environment.get(name, "")
    if not _TAGGED.fullmatch(image):
        raise LocalClusterError(
            f"KUBECONFIG is set and {name} is {image!r}: give the image with its tag (a digest may follow), as the "
            "cluster can pull it; "
            "`make images REGISTRY=…` builds and pushes it. Without KUBECONFIG the demo starts a cluster of its own"
        )
    return image


def _has_gpu(node: dict[str, dict[str, dict[str, str]]]) -> bool:
    labels = node["metadata"].get("labels", {})
    return labels.get("nvidia.com/gpu.present") == "true" or "nvidia.com/gpu" in node["status"].get("capacity", {})


def prepare_namespace(kubectl: Kubectl, name: str, enforce: str, **labels: str) -> None:
    """A namespace that enforces a Pod Security Standard: privileged | baseline | restricted."""
    standard = {"pod-security.kubernetes.io/enforce": enforce}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": standard | labels}})


def install(stack: Stack, *values: str, seconds: float = 180, keep_driver: bool = False) -> None:
    """helm upgrade --install, and wait until all of it is ready. `values`: arguments such as --set=a=b.

    `keep_driver`: a simulated driver of another image stays, and with it what runs on its GPUs.
    """
    prepare_namespace(stack.kubectl, NAMESPACE, "privileged")
    if not keep_driver:
        _delete_older_driver(stack)
    simulation = ["--set=simulation.enabled=true"] if stack.simulated else []
    stack.helm(
        "upgrade", "--install", RELEASE, str(stack.chart), "--namespace", NAMESPACE,
        *image_values(stack.operator_image), *simulation, *values,
        "--wait", "--timeout", f"{int(seconds)}s",
        seconds=seconds + 20,
    )  # fmt: skip


def image_values(image: str) -> list[str]:
    """The chart's values of an operator image with its tag. No digest of an earlier release stays: it would count."""
    named = _TAGGED.fullmatch(image)
    if named is None:
        raise LocalClusterError(f"{image!r} has no tag")
    return [
        f"--set=image.repository={named['repository']}",
        f"--set-string=image.tag={named['tag']}",
        f"--set=image.digest={named['digest'] or ''}",
    ]


def _delete_older_driver(stack: Stack) -> None:
    """An upgrade leaves the simulated driver alone, like a real one. One of another image may not understand ours."""
    name, kubectl = "gpushare-simulated-driver", stack.kubectl.within(NAMESPACE)
    live = kubectl.find("daemonset", name) if stack.embedded else None
    if live and live["spec"]["template"]["spec"]["containers"][0]["image"] != stack.operator_image:
        kubectl.delete("daemonset", name)
