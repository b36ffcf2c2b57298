"""A share that shows its clients their grant as the GPU's memory: front libraries by CDI, in real containers.

The driver's libraries are stand-ins of tests/native, which the test puts where a simulated driver has none.
"""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.claims import claim, with_claim
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.native import build

pytestmark = pytest.mark.takes(90)  # all of them, on one worker
GIB = build.GIB
LIBRARIES = "/run/gpushare-simulation/usr/lib64"
SEE = """
import ctypes, json, os, pathlib
def see():
    cuda = ctypes.CDLL("libcuda.so.1")
    free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuInit(0)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(whole), 0)
    return [free.value, total.value, whole.value, cuda.cuLaunchNothing(41)]
mounts = [line.split()[4:6] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
libraries = [(path, options.split(",")) for path, options in mounts if ".so" in path]
print(json.dumps({
    "event": "seen",
    "memory": see(),
    "fraction": os.environ.get("GPUSHARE_MEMORY_FRACTION"),
    "gpu": os.environ.get("GPUSHARE_GPU"),
    "mounts": sorted({path.rpartition("/")[2] for path, _ in libraries}),
    "writable": [path for path, options in libraries if "ro" not in options],
}), flush=True)
"""


@pytest.fixture(scope="module")
def driver(harness: Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The simulated driver has libraries, and the agent knows them."""
    place = harness.in_node(LIBRARIES)
    place.mkdir(parents=True)
    for library in build.driver(tmp_path_factory.mktemp("driver")).iterdir():
        shutil.copy(library, place / f"{library.name}.580")
        (place / library.name).symlink_to(f"{library.name}.580")
    harness.restart_pods("agent")
    harness.wait_component("agent")
    yield
    shutil.rmtree(harness.in_node("/run/gpushare-simulation/usr"))
    harness.restart_pods("agent")
    harness.wait_component("agent")


def seen(tenant: Tenant, name: str, share: str, **options: Any) -> dict[str, Any]:
    tenant.start(tenant.pod(name, share, command=["python", "-c", SEE], **options))
    found = tenant.wait_event(name, "seen")
    assert tenant.wait_ended(name) == "Succeeded"
    return found


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
        assert len(fronts(harness)) == 2

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
        found = tenant.wait_event("claimer", "seen", 90)
        assert found["memory"][:3] == [10 * GIB] * 3
        assert found["fraction"] == "1.0000", "the claim's own counts from the whole GPU"


def is_shown(harness: Harness) -> bool:
    specs = harness.in_node("/var/run/cdi").glob("gpushare.dev-gpu-*.json")
    return any("gpushare-libcuda.so.1" in json.dumps(json.loads(path.read_text())) for path in specs)


def fronts(harness: Harness) -> list[str]:
    """The node's front libraries."""
    directory = harness.in_node("/var/lib/kubelet/plugins/gpushare.dev")
    return [path.name for path in directory.glob("fronts/*/*")]
