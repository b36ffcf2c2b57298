"""A share that shows its clients their grant, from its spec to the CDI spec of its GPU."""

import json
from typing import Any

from gpushare.agent.gpus.fronts import CLASSES, SONAMES
from gpushare.kube.client import GPU_SHARES
from tests.unit.agent.fake_node import SHARE, FakeNode, read_wanted


def show(node: FakeNode, reported_total: str = "Grant") -> None:
    clients = SHARE["spec"]["clients"]
    memory = {**clients["memory"], "reportedTotal": reported_total}
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**clients, "memory": memory}}})


def has_fronts(node: FakeNode) -> None:
    node.fronts.mkdir()
    for name in (*SONAMES, CLASSES):
        (node.fronts / name).write_text(name)


def variables(node: FakeNode) -> dict[str, str]:
    """The variables of the CDI spec of GPU-0; empty while its gate is closed."""
    try:
        spec: Any = json.loads((node.cdi / "gpushare.dev-gpu-GPU-0.json").read_text())
    except FileNotFoundError:
        return {}
    return dict(item.split("=", 1) for item in spec["devices"][0]["containerEdits"]["env"])


def shown(node: FakeNode) -> bool:
    return variables(node).get("GPUSHARE_GPU") == "GPU-0"


def classify(node: FakeNode) -> None:
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "classes": {}}}})


def delivered(node: FakeNode) -> list[str]:
    return sorted(path.name for path in (node.root.parent / "kubelet").glob("plugins/gpushare.dev/fronts/*/*"))


async def test_a_share_that_says_nothing_leaves_containers_and_node_as_they_were(node: FakeNode) -> None:
    has_fronts(node)
    await node.serving()
    assert set(variables(node)) == {"CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH"}
    assert delivered(node) == []


async def test_the_option_is_in_force_for_the_next_container_at_any_time(node: FakeNode) -> None:
    has_fronts(node)
    await node.serving()
    show(node)
    await node.until(lambda: shown(node))
    assert variables(node)["GPUSHARE_MEMORY_FRACTION"] == "1.0000"
    assert delivered(node) == sorted([*SONAMES, CLASSES])
    show(node, "Device")
    await node.until(lambda: variables(node) and not shown(node))
    assert "GPUSHARE_MEMORY_FRACTION" not in variables(node), "the pod's own counts again"


async def test_an_unknown_shares_last_option_holds_through_a_restart(node: FakeNode) -> None:
    has_fronts(node)
    show(node)
    await node.serving()
    await node.until(lambda: shown(node))
    assert read_wanted(node).shows_grant
    await node.stop()
    node.kube.remove(GPU_SHARES, "a")
    (node.cdi / "gpushare.dev-gpu-GPU-0.json").unlink()
    node.start()
    await node.until(lambda: shown(node))


async def test_what_the_agent_before_delivered_stays_until_no_cdi_spec_names_it(node: FakeNode) -> None:
    has_fronts(node)
    show(node)
    await node.serving()
    await node.until(lambda: shown(node))
    await node.stop()
    node.start()
    await node.ticks(2)
    assert delivered(node) == sorted([*SONAMES, CLASSES])
    show(node, "Device")
    await node.until(lambda: variables(node) and not shown(node))
    assert delivered(node) == sorted([*SONAMES, CLASSES]), "a container may just be starting by the spec of before"
    await node.stop()
    node.start()
    await node.until(lambda: delivered(node) == [])


async def test_without_the_libraries_the_gpu_takes_no_client_and_says_why(node: FakeNode) -> None:
    show(node)
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    await node.until(lambda: "image/libcuda.so.1" in node.daemon().get("message", ""))
    assert (node.daemon()["reason"], node.daemon()["ready"]) == ("GateNotOpen", False)
    has_fronts(node)
    await node.until(lambda: node.daemon().get("ready") and shown(node))


async def test_a_share_with_classes_has_their_library_and_shows_no_grant(node: FakeNode) -> None:
    has_fronts(node)
    classify(node)
    await node.serving()
    await node.until(lambda: CLASSES in delivered(node))
    assert read_wanted(node).has_classes
    assert "GPUSHARE_GPU" not in variables(node)
    await node.stop()
    node.kube.remove(GPU_SHARES, "a")
    node.start()
    await node.until(lambda: CLASSES in delivered(node))
    await node.ticks(2)
    assert read_wanted(node).has_classes


async def test_a_share_with_a_queue_has_the_library_of_classes(node: FakeNode) -> None:
    has_fronts(node)
    await node.serving()
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "queue": {"slots": 8}}}})
    await node.until(lambda: CLASSES in delivered(node) and len(node.kubelet.ids()) == 12)
    assert read_wanted(node).has_classes


async def test_a_node_without_cdi_says_that_who_waits_is_told_nothing(node: FakeNode) -> None:
    await node.stop()
    node.start(cdi="Never")
    await node.serving()
    node.kube.put(GPU_SHARES, {**SHARE, "spec": {"clients": {**SHARE["spec"]["clients"], "queue": {"slots": 8}}}})
    await node.until(lambda: "is told no position" in node.daemon().get("message", ""))


async def test_a_node_without_cdi_gives_no_class_and_says_so(node: FakeNode) -> None:
    await node.stop()
    node.start(cdi="Never")
    classify(node)
    await node.serving()
    await node.until(lambda: "no client has a class" in node.daemon().get("message", ""))
    assert not [mount for mount in node.kubelet.edits(["GPU-0::1"]).mounts if CLASSES in mount.host_path]


async def test_a_node_without_cdi_shows_the_whole_gpu_and_says_so(node: FakeNode) -> None:
    await node.stop()
    node.start(cdi="Never")
    show(node)
    await node.serving()
    await node.until(lambda: "reportedTotal Grant needs CDI" in node.daemon().get("message", ""))
    edits = node.kubelet.edits(["GPU-0::1"])
    assert "GPUSHARE_GPU" not in edits.env
    show(node, "Device")
    await node.until(lambda: "reportedTotal" not in node.daemon().get("message", ""))
