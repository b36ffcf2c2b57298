"""Every example of the workload runs as it is published: in a restricted namespace, on the share that the README makes.

Only the sizes and the common start of pods are put in. They run beside each other, as many as there are slots; those
that end their neighbours run afterwards, each by itself. What needs whole GPUs or images that are not ours is admitted
by the cluster, and not run.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.kubectl import Object
from localcluster.paths import REPOSITORY
from tests.cluster.harness import Harness, Tenant, wait_until

EXAMPLES = REPOSITORY / "workload" / "examples"

SECONDS = 240
START_IN = 90
"""Seconds until the common start of the benchmark's pods: all eight must be ready by then, on two cores."""
SMALL = {
    "limits": "--throughput 0",
    "pool": "--tasks 4 --elements 100 --workers 2 --repeats 1",
    "streams": "--kernels 2 --iterations 256 --chunks 2 --chunk-elements 1000 --repeats 1",
    "graph": "--kernels 5 --passes 2 --repeats 1",
    "pipeline": "--elements 1000 --chunk 300 --prepare 1 --gpu-workers 1 --finish 1 --repeats 1",
    "refine": "--size 8 --processes 2",
    "pin": "--processes 2",
    "trio": "--rate 20 --depth 2 --duration 2 --repeats 1",
    "oversize": "--chunk 16 --chunks 2 --iterations 1 --repeats 1 --ways whole pageable",
    "swell": "--duration 2 --repeats 1",
    "mix": "--duration 2 --repeats 1",  # a program that ends no launch in its time is an error
    "overlap": "--iterations 256 --duration 2 --repeats 1 --records 100000",
    "hog": "--hold 0.5",
    "serve": "--rate 20 --duration 2",
    "serve-beside-batch": "--rate 20 --duration 2",
    "batch": "--elements 1000 --chunk 300 --prepare 1 --gpu-workers 1 --finish 1 --repeats 1",
    "fault": "--after 1",
    "fault-neighbours": "--duration 5",
    "depart-neighbours": "--duration 5",
    "depart-victim": "--kernel-ms 100 --duration 2",
    "bench-8-pods": "--quick --clients 1 --repeats 1 --seconds 0.3 --kinds compute --grids small --depths 1",
}
"""Arguments that come last and so win, by the Job's name."""
TOGETHER = EXAMPLES / "sharing" / "bench-8-pods.yaml"
FRAMEWORKS = sorted((EXAMPLES / "frameworks").glob("*.yaml"))
HARMFUL = [EXAMPLES / "isolation" / "depart.yaml", EXAMPLES / "isolation" / "fault.yaml"]
ADMITTED = [EXAMPLES / "cooperation" / "ddp.yaml", *FRAMEWORKS]
RUN = sorted({*EXAMPLES.glob("*/*.yaml")} - {*ADMITTED, *HARMFUL})


def objects(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def name_of(path: Path) -> str:
    return str(path.relative_to(EXAMPLES))


@pytest.fixture(scope="module")
def tenant(harness: Harness) -> Iterator[Tenant]:
    clients: dict[str, Any] = {"perGpu": 8, "processes": 6}
    limits = {"threads": {"default": 25, "max": 50}, "memory": {"default": "6Gi"}}
    with harness.share("inference", clients=clients | limits), harness.namespace() as tenant:
        yield tenant


def ready_to_run(job: Object) -> Object:
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["args"] += SMALL[job["metadata"]["name"]].split()
    if "--pods" in container["args"]:
        [variable] = container["env"]
        assert variable["name"] == "WORKLOAD_START_AT"
        variable["value"] = str(int(time.time()) + START_IN)
    return job


def condition_of(tenant: Tenant, name: str) -> str:
    conditions = tenant.kubectl.get("job", name)["status"].get("conditions", [])
    return next(
        (
            condition["type"]
            for condition in conditions
            if condition["status"] == "True" and condition["type"] in ("Complete", "Failed")
        ),
        "",
    )


def explain(tenant: Tenant, name: str) -> str:
    selector = f"--selector=job-name={name}"
    return f"{tenant.kubectl.items('pods', selector)} {tenant.kubectl('logs', selector, '--tail=20', '--prefix')}"


@pytest.fixture(scope="module")
def jobs(tenant: Tenant) -> Iterator[dict[Path, list[Object]]]:
    """All that may run beside others. The pods that begin together come first, and nobody's start delays theirs."""
    jobs = {path: [ready_to_run(job) for job in objects(path)] for path in RUN}
    (together,) = jobs[TOGETHER]
    tenant.kubectl.create(together)
    pods = together["spec"]["completions"]
    wait_until("all of them run", lambda: len(tenant.running()) == pods, START_IN, tenant.pods)
    tenant.kubectl.create(*(job for path in RUN if path != TOGETHER for job in jobs[path]))
    try:
        yield jobs
    finally:
        tenant.kubectl.delete("jobs", "--all", seconds=90)


def complete(tenant: Tenant, jobs: list[Object]) -> None:
    for job in jobs:
        name = job["metadata"]["name"]
        ended = wait_until(
            f"the end of {name}",
            lambda name=name: condition_of(tenant, name),
            SECONDS,
            lambda name=name: explain(tenant, name),
        )
        assert ended == "Complete", explain(tenant, name)


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_every_example_runs_to_its_end_on_a_share(tenant: Tenant, jobs: dict[Path, list[Object]], path: Path) -> None:
    complete(tenant, jobs[path])


@pytest.mark.parametrize("path", HARMFUL, ids=name_of)
def test_an_example_that_ends_neighbours_runs_to_its_end(
    tenant: Tenant, jobs: dict[Path, list[Object]], path: Path
) -> None:
    complete(tenant, [job for others in jobs.values() for job in others])
    own = [ready_to_run(job) for job in objects(path)]
    tenant.kubectl.create(*own)
    try:
        complete(tenant, own)
    finally:
        tenant.kubectl.delete("jobs", *(job["metadata"]["name"] for job in own), seconds=90)


@pytest.mark.parametrize("path", ADMITTED, ids=name_of)
def test_examples_with_images_of_others_are_admitted_as_they_are(tenant: Tenant, path: Path) -> None:
    """Their pods too: what a controller makes of a template meets the same admission."""
    for document in objects(path):
        tenant.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))
        template = document["spec"].get("template")
        if template:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": template["spec"]}
            pod["metadata"] |= template.get("metadata", {})
            tenant.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
