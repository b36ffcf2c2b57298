"""What the API server itself refuses of a GpuShare, with a sentence that carries field, value and bound."""

import json
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Object
from localcluster.stack import CHART, NAMESPACE, RELEASE
from tests.cluster.harness import NODE, Harness, gpu_share

MEMORY = {"default": "16Gi"}


def dry_run(harness: Harness, share: Object) -> Object:
    created: Object = json.loads(
        harness.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(share))
    )
    return created


def share(**clients: Any) -> Object:
    return gpu_share("a", {"clients": {"perGpu": 2, "memory": MEMORY} | clients})


def whole(resource: str | None = None, **spec: Any) -> Object:
    return gpu_share("a", {"wholeGpus": {"resourceName": resource} if resource else {}, **spec})


def sized(delivery: str = "ResourceClaim", **size: Any) -> Object:
    clients = {"perGpu": 2, "threads": {"default": 25, "max": 50}, "memory": MEMORY}
    sizes = [{"name": "small", "threads": 10, "memory": "8Gi"} | size]
    return gpu_share("a", {"clients": clients, "delivery": delivery, "sizes": sizes})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (share(threads={"default": 60, "max": 50}), ["threads.default", "default 60 exceeds max 50"]),
        (share(threads={"max": 101}), ["threads.max", "101", "100"]),
        (share(threads={"default": 0}), ["threads.default", "0", "1"]),
        (share(perGpu=8, processes=8), ["perGpu 8 × processes 8", "60"]),
        (share(perGpu=61), ["perGpu", "61", "60"]),
        (share(memory={"default": "511Mi"}), ["memory.default", "511Mi is below 512Mi"]),
        (share(memory={"default": "2Gi", "max": "1.5Gi"}), ["default 2Gi exceeds max 1.5Gi"]),
        (share(memory={"default": "16GB"}), ['"16GB" is not a memory quantity', "16Gi"]),
        (share(memory={"default": "1Gi", "max": "1.1Gi"}), ["memory.max", '"1.1Gi"', "whole bytes"]),
        (share(memory={"default": "-1"}), ["memory.default", '"-1"']),
        (share(classes={"default": "High"}), ["classes.default", '"High"', "BestEffort"]),
        (
            share(classes={"default": "Protected", "allowed": ["Normal"]}),
            ["classes.default", "default Protected is not allowed", "write one of Normal"],
        ),
        (
            share(processes=9, perGpu=2, classes={}),
            ["classes.protected.perGpu", "perGpu 2 × processes 9", "take Protected out of classes.allowed"],
        ),
        (share(queue={}), ["clients.queue.slots", "Required"]),
        (share(queue={"slots": 201}), ["clients.queue.slots", "201", "200"]),
        (share(perGpu=48, queue={"slots": 193}), ["queue.slots", "perGpu 48 + queue.slots 193 is more than 240"]),
        (share(queue={"slots": 8, "maxWait": "30s"}), ["queue.maxWait", "maxWait 30s is not within 1m and 24h"]),
        (share(queue={"slots": 8, "maxWait": "24h1s"}), ["queue.maxWait", "maxWait 24h1s is not within 1m and 24h"]),
        (share(queue={"slots": 8, "maxWait": "soon"}), ["queue.maxWait", '"soon" is not a duration', "1h30m"]),
        (share(queue={"slots": 8, "idleAfter": "90s"}), ["queue.idleAfter", "idleAfter 90s is less than 2m"]),
        (
            gpu_share("a", share(queue={"slots": 8})["spec"] | {"delivery": "ResourceClaim"}),
            ["clients.queue", "queue needs delivery DevicePlugin"],
        ),
        (share(memroy=MEMORY), ["memroy"]),
        (share(perGpu="8"), ["spec.clients.perGpu in body must be of type integer"]),
        (share(memory={"default": 16}), ["spec.clients.memory.default in body must be of type string"]),
        (share(threads={"overcommit": 2}), ["clients.threads.overcommit", "needs delivery ResourceClaim"]),
        (share(placement="Random"), ["spec.clients.placement", "supported values", "Pack"]),
        (
            gpu_share("a", share(placement="Spread")["spec"] | {"delivery": "ResourceClaim"}),
            ["clients.placement", "placement Spread needs delivery DevicePlugin"],
        ),
        (gpu_share("a", {}), ["write spec.clients for shared GPUs or spec.wholeGpus for whole ones"]),
        (whole(clients=share()["spec"]["clients"]), ["write spec.clients for shared GPUs or spec.wholeGpus"]),
        (whole("gpushare.dev/b"), ["wholeGpus.resourceName", '"gpushare.dev/b" must be outside of gpushare.dev']),
        (whole("gpu"), ["wholeGpus.resourceName", '"gpu"']),
        (whole(maxWait="5m"), ["not with wholeGpus, which no MPS serves: maxWait"]),
        (whole(delivery="ResourceClaim"), ["not with wholeGpus, which no MPS serves: delivery ResourceClaim"]),
        (whole(enforcement="Terminate"), ["not with wholeGpus, which no MPS serves: enforcement Terminate"]),
        (
            whole("nvidia.com/gpu", allowedNamespaces={"matchLabels": {"team": "ml"}}),
            ["spec.allowedNamespaces", "needs the name gpushare.dev/<share>"],
        ),
        (sized(delivery="DevicePlugin"), ["spec.sizes", "sizes need delivery ResourceClaim"]),
        (sized(threads=51), ["spec.sizes", "a size's threads must not exceed clients.threads.max"]),
        (sized(memory="17Gi"), ["spec.sizes", "a size's memory must not exceed clients.memory.max"]),
        (sized(**{"class": "BestEffort"}), ["spec.sizes", "a size's class needs clients.classes"]),
        (sized(memory="256Mi"), ["spec.sizes", "a size's memory must be at least 512Mi"]),
        (share(memory={"default": "8Gi", "limits": {"max": "4Gi"}}), ["memory.limits", "limits.max must be at least"]),
        (
            share(memory={"default": "8Gi", "limits": {"max": "9Gi", "default": "10Gi"}}),
            ["limits.default 10Gi exceeds limits.max 9Gi"],
        ),
        (
            share(memory={"default": "8Gi", "limits": {"max": "9Gi", "default": "7Gi"}}),
            ["limits.default must be at least memory.default"],
        ),
        (share(memory={"default": "8Gi", "limits": {}}), ["memory.limits.max", "Required"]),
        (
            share(memory={"default": "8Gi", "overcommit": True, "limits": {"max": "9Gi"}}),
            ["memory.limits", "needs memory.overcommit false"],
        ),
        (
            share(memory={"default": "8Gi", "limits": {"max": "9Gi", "overcommitPercent": 99}}),
            ["overcommitPercent", "greater than or equal to 100"],
        ),
        (
            share(memory={"default": "8Gi", "limits": {"max": "9Gi", "whenShort": "Kill"}}),
            ["whenShort", '"Kill"', "Terminate"],
        ),
        (sized(memoryLimit="16Gi"), ["spec.sizes", "a size's memoryLimit needs clients.memory.limits"]),
        (sized(memory="8GB"), ['"8GB" is not a memory quantity']),
        (sized(name="a.b"), ["sizes[0].name", "a.b"]),
        (gpu_share("a.b", share()["spec"]), ['name "a.b" cannot be used', "40 characters"]),
        (gpu_share("a" * 41, share()["spec"]), ["40 characters"]),
        (gpu_share("1a", share()["spec"]), ["beginning with a letter"]),
        (
            gpu_share("a", share()["spec"] | {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            ["matchExpressions[0].values", "need values"],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_value_is_refused_by_name(harness: Harness, wrong: Object, words: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        dry_run(harness, wrong)
    for word in words:
        assert word in refused.value.text


@pytest.mark.parametrize("memory", ["512Mi", "1.5Gi", "1536Mi", "536870912", "2G"])
def test_every_form_of_a_quantity_is_taken(harness: Harness, memory: str) -> None:
    dry_run(harness, share(memory={"default": memory}, threads={"default": 25, "max": 50}))


def test_defaults_are_written_out_by_the_server(harness: Harness) -> None:
    spec = dry_run(harness, share())["spec"]
    assert spec["clients"]["threads"] == {"default": 100, "max": 100, "overcommit": 1}
    assert (spec["clients"]["processes"], "classes" in spec["clients"]) == (1, False)
    classes = dry_run(harness, share(classes={}))["spec"]["clients"]["classes"]
    assert (classes["default"], classes["protected"], classes["bestEffort"]) == (
        "Normal",
        {"perGpu": 2},
        {"threadsBesideProtected": 50},
    )
    assert (spec["delivery"], spec["enforcement"], "queue" in spec["clients"]) == ("DevicePlugin", "Audit", False)
    assert dry_run(harness, share(queue={"slots": 8}))["spec"]["clients"]["queue"] == {"slots": 8, "maxWait": "1h"}


def test_as_many_sizes_as_allowed_are_taken_and_no_two_of_one_name(harness: Harness) -> None:
    share = sized()
    (size,) = share["spec"]["sizes"]
    share["spec"]["sizes"] = [size | {"name": f"s{number}"} for number in range(16)]
    assert len(dry_run(harness, share)["spec"]["sizes"]) == 16
    share["spec"]["sizes"] = [size, size]
    with pytest.raises(CommandError, match="Duplicate value"):
        dry_run(harness, share)


def test_delivery_is_immutable(harness: Harness) -> None:
    nowhere = {"matchLabels": {"no": "where"}}
    change = ("patch", "gpushare", "fixed", "--type=merge", '-p={"spec":{"delivery":"ResourceClaim"}}')
    with (
        harness.share("fixed", ready=False, nodeSelector=nowhere),
        pytest.raises(CommandError, match="delivery is immutable"),
    ):
        harness.kubectl(*change)


@pytest.mark.parametrize("resource", ["example.com/b", None])
def test_what_a_share_gives_and_under_which_name_is_immutable(harness: Harness, resource: str | None) -> None:
    nowhere = {"nodeSelector": {"matchLabels": {"no": "where"}}}
    share = whole("example.com/a", **nowhere)
    harness.kubectl.apply(share)
    try:
        with pytest.raises(CommandError, match="wholeGpus is immutable"):
            harness.kubectl.apply(whole(resource, **nowhere))
        with pytest.raises(CommandError, match="wholeGpus is immutable"):
            harness.kubectl.apply(gpu_share("a", {"clients": {"perGpu": 2, "memory": MEMORY}, **nowhere}))
    finally:
        harness.kubectl.delete("gpushare", "a", seconds=90)


def test_the_status_of_an_earlier_releases_agent_is_refused(harness: Harness) -> None:
    limits = {"threads": 25, "memoryMib": 16384}
    daemon = {"uuid": "GPU-1", "share": "a", "wanted": limits, "inForce": limits}
    node = {
        "apiVersion": "gpushare.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": NODE},
        "status": {"computeModes": "Manage", "daemons": [daemon]},
    }
    before = harness.gpu_node()["status"]
    apply = ("apply", "--server-side", "--force-conflicts", "--validate=false", "--subresource=status")
    with pytest.raises(CommandError, match="field not declared in schema"):
        harness.kubectl(*apply, "--field-manager=gpushare-agent", "-f", "-", stdin=json.dumps(node))
    assert harness.gpu_node()["status"]["gpus"] == before["gpus"]


def test_explain_is_documentation(harness: Harness) -> None:
    told = harness.kubectl("explain", "gpushare.spec.clients.memory")
    assert "GPU memory reserved for each client (container)" in told
    assert "512Mi" in told
    assert "16Gi" in told
    assert "overcommit" in told


def test_an_upgrade_renders_the_definitions_and_another_release_is_refused(harness: Harness) -> None:
    """Rendered against the cluster, so that what is there decides."""
    render = ("template", "--namespace", NAMESPACE, "--is-upgrade", "--dry-run=server")
    ours = harness.stack.helm(*render, RELEASE, str(CHART))
    assert ours.count("kind: CustomResourceDefinition") == 2
    with pytest.raises(CommandError, match=f"installed by release {RELEASE} of namespace {NAMESPACE}: one"):
        harness.stack.helm(*render, "another", str(CHART))
