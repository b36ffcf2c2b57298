"""`kubectl gpushare recommend` on a real cluster: what it recommends is what clients leave, and its line does it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gpushare.api.quantity import MIB, parse_mib
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.recommend.owners import with_owners
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind
from gpushare.kubectl.rules.recommend.sureness import Sureness
from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant, wait_until

SECONDS = 240


def recommended(harness: Harness) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "gpushare.kubectl.main",
        "recommend",
        "--watch=65s",
        "--share=wide",
        "-o",
        "json",
    ]
    environment = os.environ | harness.stack.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_recommended_line_lowers_new_clients_grant_and_ends_none(harness: Harness) -> None:
    wide: dict[str, Any] = {"per_node": 1, "per_gpu": 4, "memory": {"default": "16Gi"}}
    with harness.share("wide", **wide) as share, harness.namespace() as tenant:
        names = tenant.neighbours("wide", 2)
        answer = recommended(harness)
        (advice,) = [
            recommendation
            for recommendation in answer["recommendations"]
            if recommendation["kind"] == "memory granted and never used"
        ]
        assert advice["sure"] == "low", "a watch is a glimpse"
        assert advice["figures"]["containers"] == 2
        assert 0 < advice["figures"]["mostUsedMiB"] < advice["figures"]["recommendedMiB"] < 16 * 1024
        assert share.get()["spec"]["clients"]["memory"]["default"] == "16Gi", "nothing is changed by itself"

        environment = os.environ | harness.stack.environment
        done = subprocess.run(["sh", "-c", advice["command"]], env=environment, capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        mib = parse_mib(share.get()["spec"]["clients"]["memory"]["default"])
        assert mib == advice["figures"]["recommendedMiB"]
        share.wait_ready()
        (later,) = tenant.neighbours("wide", 1, prefix="later")
        assert tenant.events_of(later, "limits")[0]["granted"]["memory"] == mib * MIB
        before = {pod["metadata"]["name"]: pod for pod in tenant.running()}
        for name in names:
            assert before[name]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_the_line_for_a_deployment_gives_its_container_a_whole_gpu(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made up is that it belongs alone; who makes its pods, and what the line does, are the cluster's."""
    advice = Advice(AdviceKind.OWN_GPU, "apart", "", "a slot", "a whole GPU", "made up", Sureness.LOW)
    with harness.share("apart", per_node=1, per_gpu=2), harness.namespace() as tenant:
        tenant.kubectl.create(deployment(tenant, "serve", "apart"))
        wait_until("its pod runs", tenant.running)
        for name, value in harness.stack.environment.items():
            monkeypatch.setenv(name, value)
        cluster = Cluster()
        try:
            (owned,) = with_owners(cluster, [replace(advice, about=f"{tenant.name}/serve")])
        finally:
            cluster.close()
        done = subprocess.run(["sh", "-c", owned.command()], capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        (container,) = tenant.kubectl.get("deployment", "serve")["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert container["resources"].get("requests") == {"nvidia.com/gpu": "1"}
        tenant.kubectl.delete("deployment", "serve")


def deployment(tenant: Tenant, name: str, share: str) -> Object:
    pod = tenant.pod(name, share, "depart")
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
