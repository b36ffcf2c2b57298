"""A share that shows its clients their grant as the GPU's memory, or gives them a class: front libraries by CDI, in
real containers.

The driver's libraries are stand-ins of tests/native, which the test puts where a simulated driver has none.
"""

import json
from typing import Any

import pytest

from localcluster.kubectl import CommandError, as_list
from tests.cluster.claims import claim, sized, wait_template, with_claim
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.native import build

GIB = build.GIB
SEE = """
import ctypes, json, os, pathlib
def see():
    cuda = ctypes.CDLL("libcuda.so.1")
    free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuInit(0)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(whole), 0)
    return [free.value, total.value, whole.value, cuda.cuLaunchNothing(41)]
mounts = [line.split()[3:6] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
libraries = [(path, options.split(",")) for _, path, options in mounts if ".so" in path]
print(json.dumps({
    "event": "seen",
    "memory": see(),
    "fraction": os.environ.get("GPUSHARE_MEMORY_FRACTION"),
    "gpu": os.environ.get("GPUSHARE_GPU"),
    "class": [os.environ.get("GPUSHARE_CLASS"), os.environ.get("GPUSHARE_THREADS_BESIDE_PROTECTED")],
    "front": [root.rpartition("/")[2] for root, path, _ in mounts if path.endswith("linux-gnu/libcuda.so.1")],
    "mounts": sorted({path.rpartition("/")[2] for path, _ in libraries}),
    "writable": [path for path, options in libraries if "ro" not in options],
}), flush=True)
"""


def seen(tenant: Tenant, name: str, share: str, **options: Any) -> dict[str, Any]:
    tenant.start(tenant.pod(name, share, command=["python", "-c", SEE], **options))
    line = tenant.wait_event(name, "seen")
    assert tenant.wait_ended(name) == "Succeeded"
    return line


@pytest.mark.usefixtures("driver")
def test_a_client_sees_its_grant_if_the_share_says_so_else_the_whole_gpu(harness: Harness) -> None:
    harness.restart_pods("agent")  # it removes the libraries of shares before
    harness.wait_component("agent")
    with harness.share("shown", per_node=1) as share, harness.namespace() as tenant:
        plain = seen(tenant, "plain", "shown")
        assert plain["memory"] == [70 * GIB, 80 * GIB, 80 * GIB, 42]
        assert plain["gpu"] is None
        assert not [name for name in plain["mounts"] if name.startswith("gpushare-")]
        assert fronts(harness) == []

        share.apply(per_node=1, memory={"default": "8Gi", "reportedTotal": "Grant"})
        wait_until("the GPU's CDI spec has the front libraries", lambda: is_shown(harness))
        shown = seen(tenant, "shown", "shown", annotations={"gpushare.dev/memory": "6Gi"})
        assert shown["memory"] == [6 * GIB, 6 * GIB, 6 * GIB, 42], "of its own grant"
        assert shown["fraction"] == "1.0000"
        assert shown["gpu"].startswith("GPU-")
        assert {"libcuda.so.1", "gpushare-libcuda.so.1", "gpushare-libnvidia-ml.so.1"} <= set(shown["mounts"])
        assert shown["writable"] == []
        assert shown["front"] == ["libcuda.so.1"]
        assert shown["class"] == [None, None]

        share.apply(per_node=1, memory={"default": "8Gi"})
        wait_until("it has them no more", lambda: not is_shown(harness))
        again = seen(tenant, "again", "shown")
        assert {key: again[key] for key in ("memory", "fraction", "gpu")} == {
            key: plain[key] for key in ("memory", "fraction", "gpu")
        }


@pytest.mark.usefixtures("driver")
def test_each_of_several_processes_sees_its_own_part(harness: Harness) -> None:
    memory = {"default": "9Gi", "reportedTotal": "Grant"}
    clients = {"perGpu": 2, "processes": 3, "threads": {"default": 25, "max": 50}, "memory": memory}
    with harness.share("parts", clients=clients, gpus={"perNode": 1}), harness.namespace() as tenant:
        assert seen(tenant, "one-of-three", "parts")["memory"][:3] == [3 * GIB] * 3


@pytest.mark.usefixtures("driver")
def test_a_claim_s_client_sees_what_it_claimed(harness: Harness) -> None:
    memory = {"default": "8Gi", "max": "16Gi", "reportedTotal": "Grant"}
    with (
        harness.share("claimed", per_node=1, memory=memory, delivery="ResourceClaim"),
        harness.namespace() as tenant,
    ):
        tenant.kubectl.create(claim("part", "claimed.gpushare.dev", {"threads": "20", "memory": "10Gi"}))
        pod = tenant.pod("claimer", "claimed", command=["python", "-c", SEE])
        tenant.start(with_claim(pod, resourceClaimName="part"))
        line = tenant.wait_event("claimer", "seen", 90)
        assert line["memory"][:3] == [10 * GIB] * 3
        assert line["fraction"] == "1.0000", "the claim's own counts from the whole GPU"


@pytest.mark.usefixtures("driver")
def test_a_client_has_the_class_that_its_pod_names_and_its_share_allows(harness: Harness) -> None:
    clients = {"perGpu": 4, "threads": {"default": 25}, "memory": {"default": "8Gi"}}
    classes = {"protected": {"perGpu": 1}, "bestEffort": {"threadsBesideProtected": 40}}
    spec: dict[str, Any] = {"clients": clients | {"classes": classes}, "gpus": {"perNode": 1}}
    with harness.share("classed", **spec) as share, harness.namespace() as tenant:
        plain = seen(tenant, "plain", "classed")
        assert (plain["class"], plain["front"], plain["gpu"]) == (["Normal", None], ["libcuda-classes.so.1"], None)
        lower = {"gpushare.dev/class": "BestEffort", "gpushare.dev/threads-beside-protected": "20"}
        assert seen(tenant, "lower", "classed", annotations=lower)["class"] == ["BestEffort", "20"]

        protected = {"gpushare.dev/class": "Protected"}
        tenant.neighbours("classed", 1, "service", annotations=protected)
        tenant.start(tenant.pod("second", "classed", "depart", annotations=protected))
        refused = wait_until("the event", lambda: attach_refusals(tenant, "second"), 60)
        assert "TooManyProtected" in refused[0]
        assert "clients.classes.protected.perGpu" in refused[0]
        tenant.go_on(["service-0"])

        elsewhere = classes | {"protected": {"perGpu": 1, "namespaces": ["web"]}}
        share.apply(per_node=1, clients=clients | {"classes": elsewhere})

        def is_denied() -> bool:
            """The webhook's watch may be a moment behind the share."""
            try:
                third = tenant.pod("third", "classed", annotations=protected)
                tenant.kubectl("create", "-f", "-", "--dry-run=server", stdin=as_list([third]))
            except CommandError as error:
                return f'"Protected" is not for namespace "{tenant.name}"' in error.text
            return False

        wait_until("the namespace may not", is_denied)
        tenant.go_on(["service-0"])


@pytest.mark.usefixtures("driver")
def test_a_claims_client_has_the_class_of_its_size(harness: Harness) -> None:
    clients = {"perGpu": 4, "memory": {"default": "8Gi"}, "classes": {}}
    sizes = [{"name": "batch", "threads": 20, "memory": "4Gi", "class": "BestEffort"}]
    spec: dict[str, Any] = {"clients": clients, "gpus": {"perNode": 1}, "delivery": "ResourceClaim", "sizes": sizes}
    with harness.share("sized", **spec), harness.namespace() as tenant:
        wait_template(tenant, "batch", "sized")
        tenant.start(sized(tenant, "batch", "sized", "batch", command=["python", "-c", SEE]))
        line = tenant.wait_event("batch", "seen", 90)
        assert (line["class"], line["front"]) == (["BestEffort", "50"], ["libcuda-classes.so.1"])


def attach_refusals(tenant: Tenant, pod: str) -> list[str]:
    return [event["message"] for event in tenant.kubernetes_events(pod) if event["reason"] == "AttachRefused"]


def is_shown(harness: Harness) -> bool:
    specs = harness.in_node("/var/run/cdi").glob("gpushare.dev-gpu-*.json")
    return any("gpushare-libcuda.so.1" in json.dumps(json.loads(path.read_text())) for path in specs)


def fronts(harness: Harness) -> list[str]:
    """The node's front libraries."""
    directory = harness.in_node("/var/lib/kubelet/plugins/gpushare.dev")
    return [path.name for path in directory.glob("fronts/*/*")]
