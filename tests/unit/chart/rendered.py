"""What the chart renders, by variants of its values."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from localcluster.paths import REPOSITORY, cache_root

CHART = REPOSITORY / "charts" / "gpushare"
NAMESPACE = "gpu-home"
Object = dict[str, Any]

TERMS = "agent.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
VARIANTS = {
    "default": (),
    "simulated": ("simulation.enabled=true",),
    "everything": (
        "certificates.mode=CertManager",
        "operator.replicas=2",
        "imagePullSecrets[0].name=one",
        "imagePullSecrets[1].name=two",
        "image.tag=v9",
        "image.digest=sha256:" + "0" * 64,
        "driverRoot=/run/nvidia/driver",
        "computeMode=Leave",
        "agent.gpuAccess=RuntimeClass",
        "agent.runtimeClassName=nvidia-cdi",
        "webhook.failurePolicy.shares=Ignore",
        "webhook.clientCertificates.authority=-----BEGIN CERTIFICATE-----",
        "webhook.clientCertificates.names[0]=kube-apiserver",
        "uninstall.shares=Delete",
        "metrics.port=9500",
        "metrics.from[0].namespaceSelector.matchLabels.team=watchers",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
        "metrics.prometheusRule.labels.release=watch",
        "metrics.podMonitor.interval=1m",
        "metrics.prometheusRule.enabled=true",
        "metrics.prometheusRule.runbooks=https://wiki.example/gpushare/",
        "metrics.dashboard.enabled=true",
        "tenants.subjects[0].kind=Group",
        "tenants.subjects[0].name=ml",
        "tenants.subjects[1].kind=ServiceAccount",
        "tenants.subjects[1].name=ci",
        "tenants.subjects[1].namespace=ml",
    ),
    "unprivileged": ("agent.gpuAccess=RuntimeClass", "driverDirectories={usr,etc/alternatives}"),
    "lean": ("agent.gpuAccess=RuntimeClass",),
    "openshift": ("openshift.securityContextConstraints=true", "driverRoot=/run/nvidia/driver"),
    "labelled": ("agent.seLinuxOptions.type=spc_t", "mps.seLinuxOptions.type=spc_t", "mps.seLinuxOptions.level=s0"),
    "placed": (
        f"{TERMS}[0].matchExpressions[0].key=zone",
        f"{TERMS}[0].matchExpressions[0].operator=In",
        f"{TERMS}[0].matchExpressions[0].values={{a}}",
        f"{TERMS}[1].matchFields[0].key=metadata.name",
        f"{TERMS}[1].matchFields[0].operator=In",
        f"{TERMS}[1].matchFields[0].values={{n1}}",
        "agent.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
    ),
    "page": (
        "ui.enabled=true",
        "ui.hosts={gpus.example.com,gpus}",
        "ui.from[0].namespaceSelector.matchLabels.team=ingress",
    ),
    "applied": ("hooks.enabled=false",),
    "least": (
        "crds.enabled=false",
        "policies.enabled=false",
        "resourceQuota.enabled=false",
        "webhook.replicas=1",
        "metrics.enabled=false",
    ),
}
UNPRIVILEGED = {"unprivileged": ["KILL", "SYS_ADMIN"], "lean": ["KILL", "SYS_ADMIN"], "everything": ["KILL"]}
"""Capabilities, by variant, of an agent that is not privileged; SYS_ADMIN only where it sets compute modes."""
HOST_PATHS = {
    "gpushare-agent": {
        "/run/gpushare",
        "/run/gpushare-simulation",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/plugins/gpushare.dev",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/pod-resources",
        "/var/run/cdi",
        "/usr",  # the driver's files, read-only, where GPUs are real
        "/etc/alternatives",
        "/run/nvidia/driver",
    },
    "gpushare-simulated-driver": {"/run/gpushare-simulation"},
}


def helm_program() -> str | None:
    cached = sorted(cache_root().glob("helm-*/helm"), key=os.path.getmtime)
    return os.environ.get("HELM") or shutil.which("helm") or (str(cached[-1]) if cached else None)


HELM = helm_program()
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: set HELM, or run `make cluster-build`")


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=check)


@cache
def rendered(variant: str) -> list[Object]:
    sets = [f"--set={value}" for value in VARIANTS[variant]]
    text = helm("template", "gpushare", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.37.0", *sets).stdout
    return documents(text)


def documents(text: str) -> list[Object]:
    """By libyaml: all that the chart renders takes a third of a second without it, in each worker for each variant."""
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]


def of_kind(variant: str, *kinds: str) -> list[Object]:
    return [item for item in rendered(variant) if item["kind"] in kinds]


def named(variant: str, kind: str, name: str) -> Object:
    (match,) = [item for item in of_kind(variant, kind) if item["metadata"]["name"] == name]
    return match


def workloads(variant: str) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that runs, hooks included."""
    for item in of_kind(variant, "Deployment", "DaemonSet", "Job"):
        yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def containers(variant: str) -> Iterator[tuple[str, Object]]:
    for name, pod in workloads(variant):
        for container in pod["containers"]:
            yield name, container


every_variant = pytest.mark.parametrize("variant", VARIANTS)
