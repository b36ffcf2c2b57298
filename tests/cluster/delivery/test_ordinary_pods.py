"""Pods as people have them: drained, restored, without their variables, on tainted nodes, of several containers."""

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from localcluster.kubectl import CommandError, Object
from localcluster.paths import REPOSITORY
from tests.cluster.harness import NODE, Harness, Share, Tenant, wait_until

WITHOUT_VARIABLES = """
import json
from gpushare.simulation.client import CudaError, SimulatedContext
context = SimulatedContext.create({})
try:
    context.alloc(9 << 30)
    error = 0
except CudaError as refused:
    error = refused.code
print(json.dumps({"event": "attached", "under_mps": context.under_mps, "sms": context.sms, "error": error}))
context.close()
"""
BARE = f"""
import json, subprocess, sys, time
def written(path, size):
    try:
        with open(path, "wb") as file:
            file.write(b"x" * size)
        return ""
    except OSError as error:
        return error.strerror
logs = [written(f"/var/log/{{name}}-mps/control.log", 1 << 20) for name in ("gpushare", "nvidia")]
print(json.dumps({{"event": "logs", "small": logs, "large": written("/var/log/gpushare-mps/x", 8 << 20),
                  "root": written("/x", 1), "tmp": written("/tmp/x", 1)}}), flush=True)
print(subprocess.run([sys.executable, "-c", {WITHOUT_VARIABLES!r}], env={{}}, capture_output=True, text=True).stdout)
sys.stdout.flush()
time.sleep(600)
"""
SKU = "sku=gpu:NoSchedule"


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("ordinary", per_node=1) as share:
        yield share


@pytest.fixture
def tenant(harness: Harness, share: Share) -> Iterator[Tenant]:
    share.wait_ready()
    with harness.namespace() as tenant:
        yield tenant


def deployment(template: Object) -> Object:
    labels = {"app": "served"}
    spec = {**template["spec"], "restartPolicy": "Always"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "served"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def documented(program: str) -> list[str]:
    """The arguments of the command on the page about going back to NVIDIA's plugin, for this node."""
    (line,) = re.findall(rf"^ *kubectl ({program} NODE .*)$", (REPOSITORY / "docs/upgrading.md").read_text(), re.M)
    return [NODE if word == "NODE" else word for word in shlex.split(line)]


def variables(pod: Object, index: int = 0) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][index].get("env", [])}


def test_a_drain_as_documented_moves_clients_and_ends(harness: Harness, tenant: Tenant) -> None:
    tenant.kubectl.apply(deployment(tenant.pod("served", "ordinary", "depart")))
    (first,) = wait_until("a client runs", tenant.running, 60, tenant.pods)
    assert "emptyDir" not in json.dumps(first["spec"].get("volumes", []))
    try:
        harness.kubectl(*documented("drain"), f"--namespace={tenant.name}", "--timeout=120s", seconds=180)
        assert first["metadata"]["name"] not in {pod["metadata"]["name"] for pod in tenant.running()}
    finally:
        harness.kubectl("uncordon", NODE)
    wait_until("it runs again", tenant.running, 60, tenant.pods)


def test_a_process_without_variables_is_a_client_with_the_same_limits(tenant: Tenant) -> None:
    """As under ssh, su, cron and `env -i`; here with a read-only root and an emptyDir at /tmp, too."""
    pod = tenant.pod("bare", "ordinary", command=["python", "-c", BARE])
    (container,) = pod["spec"]["containers"]
    container["securityContext"]["readOnlyRootFilesystem"] = True
    container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
    pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    tenant.start(pod)
    attached = tenant.wait_event("bare", "attached")
    assert attached == {"event": "attached", "under_mps": True, "sms": 32, "error": 2}
    logs = tenant.events_of("bare", "logs")[0]
    assert (logs["small"], logs["tmp"]) == (["", ""], "")
    assert logs["large"] == "No space left on device"
    assert logs["root"] == "Read-only file system"


def test_a_tainted_gpu_node_takes_pods_of_shares(harness: Harness, tenant: Tenant) -> None:
    harness.kubectl("taint", "node", NODE, "nvidia.com/gpu=present:NoSchedule", "--overwrite")
    try:
        tenant.start(tenant.pod("tolerant", "ordinary", "limits"))
        assert tenant.wait_event("tolerant", "limits")["problems"] == []
    finally:
        harness.kubectl("taint", "node", NODE, "nvidia.com/gpu-")


def copy_of(pod: Object, name: str) -> Object:
    """The pod as exported, for another creation, as restores and people do it."""
    kept = {"namespace": pod["metadata"]["namespace"], "annotations": pod["metadata"].get("annotations", {})}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept | {"name": name}, "spec": spec}


def test_copies_of_a_pod_run_with_the_grant_of_today(share: Share, tenant: Tenant) -> None:
    tenant.start(tenant.pod("client", "ordinary", "depart"))
    tenant.wait_event("client", "started")
    exported = tenant.kubectl.get("pod", "client")
    share.apply(per_node=1, memory={"default": "6Gi"})
    try:
        share.wait_ready()
        wait_until("the webhook knows", lambda: _copied(tenant, exported), 30)
        image = exported["spec"]["containers"][0]["image"]
        tenant.kubectl("debug", "client", "--copy-to=debugged", f"--set-image=app={image}")
        for name in ("restored", "debugged"):
            tenant.wait_event(name, "started")
            assert variables(tenant.kubectl.get("pod", name))["GPUSHARE_MEMORY_BYTES"] == str(6 << 30)
    finally:
        share.apply(per_node=1)


def _copied(tenant: Tenant, exported: Object) -> bool:
    tenant.start(copy_of(exported, "restored"))
    if variables(tenant.kubectl.get("pod", "restored"))["GPUSHARE_MEMORY_BYTES"] == str(6 << 30):
        return True
    tenant.delete_pods("restored")
    return False


def test_containers_of_one_pod_ask_for_themselves(tenant: Tenant) -> None:
    asked = {"memory.gpushare.dev/app": "4Gi", "gpushare.dev/memory": "2Gi", "threads.gpushare.dev/side": "10"}
    pod = tenant.pod("pair", "ordinary", "depart", annotations=asked)
    (first,) = pod["spec"]["containers"]
    pod["spec"]["containers"].append(first | {"name": "side"})
    tenant.start(pod)
    created = tenant.kubectl.get("pod", "pair")
    app, side = variables(created), variables(created, 1)
    assert (app["GPUSHARE_MEMORY_BYTES"], app["GPUSHARE_THREADS"]) == (str(4 << 30), "25")
    assert (side["GPUSHARE_MEMORY_BYTES"], side["GPUSHARE_THREADS"]) == (str(2 << 30), "10")
    for name in ("app", "side"):
        wait_until(
            f"{name} computes", lambda name=name: '"checks"' in tenant.kubectl("logs", "pair", f"--container={name}")
        )


def test_a_warm_up_and_the_program_have_one_slot(tenant: Tenant) -> None:
    pod = tenant.pod("warm", "ordinary", "limits")
    (client,) = pod["spec"]["containers"]
    pod["spec"]["initContainers"] = [client | {"name": "warm-up"}]
    with pytest.raises(CommandError, match="do its work in the container that serves, before its program"):
        tenant.start(pod)
    del pod["spec"]["initContainers"]
    client["command"] = ["sh", "-c", "gpushare-workload run limits && exec gpushare-workload run limits"]
    del client["args"]
    tenant.start(pod)
    assert tenant.wait_ended("warm") == "Succeeded", tenant.explain("warm")
    assert [seen["problems"] for seen in tenant.events_of("warm", "limits")] == [[], []]


def test_an_annotation_of_one_container_has_no_effect_later(tenant: Tenant) -> None:
    tenant.start(tenant.pod("late", "ordinary", "depart"))
    with pytest.raises(CommandError) as told:
        tenant.kubectl("annotate", "pod", "late", "memory.gpushare.dev/app=1Gi", "--warnings-as-errors")
    assert "metadata.annotations[memory.gpushare.dev/<container>]: has no effect once the pod" in told.value.text
