"""What the page shows of objects and of an agent's metrics."""

import json
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.page.content.figures import HISTORY_SECONDS, FigureHistory
from gpushare.kubectl.page.content.rows import event_rows, node_rows, pending_rows, pod_detail, share_rows
from gpushare.kubectl.views.pods.pod import PodFacts
from tests.unit.kubectl.cluster_objects import SILENT, event, gpu_node, pod, share

DAEMON = {"uuid": "GPU-a", "share": "inference", "ready": True, "reason": "Ready"}
HOLDER = {"uuid": "GPU-a", "share": "inference", "slots": [0, 3], "pods": ["ml/x", "ml/y"]}


def test_a_gpu_has_its_share_its_state_and_who_holds_it() -> None:
    rows = node_rows(gpu_node("GPU-a", "GPU-b", daemons=[DAEMON], holders=[HOLDER]))
    assert list(rows) == ["node/n1", "gpu/GPU-a", "gpu/GPU-b"]
    shown = {key: rows["gpu/GPU-a"][key] for key in ("share", "state", "ready", "held", "pods")}
    assert shown == {"share": "inference", "state": "Ready", "ready": True, "held": 2, "pods": ["ml/x", "ml/y"]}
    assert [rows["gpu/GPU-b"][key] for key in ("share", "state", "ready", "held")] == ["", "Free", False, 0]


def test_of_a_silent_node_no_gpu_is_shown_as_ready() -> None:
    rows = node_rows(gpu_node("GPU-a", daemons=[DAEMON], conditions=[SILENT]))
    assert (rows["gpu/GPU-a"]["ready"], rows["gpu/GPU-a"]["state"]) == (False, "Unknown")
    assert rows["node/n1"]["silence"] == "no heartbeat since 9:00"


def test_rows_are_json() -> None:
    rows = {**share_rows(share()), **node_rows(gpu_node("GPU-a")), **event_rows([event("Reason", "text")], 5)}
    assert json.loads(json.dumps(rows)).keys() == rows.keys()


def test_the_event_rows_are_kept() -> None:
    many = [
        event("R", "m", at=f"2026-01-01T00:{minute:02}:00Z", metadata={"name": f"e{minute}", "uid": f"u{minute}"})
        for minute in range(10)
    ]
    assert sorted(event_rows(many, 3)) == ["event/u7", "event/u8", "event/u9"]


def test_a_pod_that_waits_has_the_sentence_of_why() -> None:
    full = GpuShare.model_validate(share().wire() | {"status": {"slots": {"total": 8, "used": 8}}})
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1: Insufficient gpushare.dev/inference"}
    waiting = pod(status={"phase": "Pending", "conditions": [condition]})
    rows = pending_rows([waiting], {"inference": full}, {}, {}, 10)
    assert rows["pod/ml/app"]["sentence"] == "it waits for a slot of share inference: all 8 are held, on 0 GPUs"
    assert rows["pod/ml/app"]["shares"] == ["inference"]


def test_of_many_waiting_pods_the_oldest_are_kept() -> None:
    pods = [pod(f"p{day}", metadata={"creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}) for day in range(1, 9)]
    assert sorted(pending_rows(reversed(pods), {}, {}, {}, 2)) == ["pod/ml/p1", "pod/ml/p2"]


def test_a_pods_details_lead_to_its_gpu_and_its_neighbours() -> None:
    node = gpu_node("GPU-a", daemons=[DAEMON], holders=[HOLDER | {"pods": ["ml/app", "ml/other"]}])
    running = pod(spec={"nodeName": "n1"}, status={"phase": "Running"})
    detail = pod_detail(PodFacts(running, [event("Pulled", "image")], {"inference": share()}, [node]))
    assert detail["gpus"] == [{"uuid": "GPU-a", "node": "n1", "share": "inference", "neighbours": ["ml/other"]}]
    assert [event["reason"] for event in detail["events"]] == ["Pulled"]


def metrics(utilization: float = 0.5, used: str = "1073741824", age: float = 1.0) -> str:
    labels = 'namespace="ml",pod="app",container="main",share="inference",uuid="GPU-a"'
    return (
        f'gpushare_gpu_utilization_ratio{{uuid="GPU-a"}} {utilization}\n'
        f'gpushare_gpu_reading_age_seconds{{uuid="GPU-a"}} {age}\n'
        f"gpushare_container_memory_used_bytes{{{labels}}} {used}\n"
        f"gpushare_container_memory_granted_bytes{{{labels}}} 2147483648\n"
        f"gpushare_container_threads_granted_ratio{{{labels}}} 0.25\n"
        f"gpushare_container_processes{{{labels}}} 1\n"
        "process_cpu_seconds_total 3\n"
    )


def test_figures_are_those_of_the_agent() -> None:
    row = FigureHistory().rows("n1", metrics(), 1000.0)["figures/GPU-a"]
    assert row["utilization"] == 50
    assert row["clients"] == [
        {"namespace": "ml", "pod": "app", "container": "main", "share": "inference", "used": 1024, "granted": 2048,
         "limit": None, "borrowed": None, "processes": 1, "allowed": None, "threads": 25, "class": "",
         "active": None}
    ]  # fmt: skip


def test_figures_have_a_clients_class_and_active_time() -> None:
    labels = 'namespace="ml",pod="app",container="main",share="inference",uuid="GPU-a",class="BestEffort"'
    more = f"gpushare_container_active_seconds_total{{{labels}}} 12.4\n"
    (client,) = FigureHistory().rows("n1", metrics() + more, 1000.0)["figures/GPU-a"]["clients"]
    assert (client["class"], client["active"], client["used"]) == ("BestEffort", 12, 1024)


def test_figures_say_who_borrows_and_what_is_left_on_the_gpu() -> None:
    labels = 'namespace="ml",pod="app",container="main",share="inference",uuid="GPU-a"'
    more = (
        f"gpushare_container_memory_limit_bytes{{{labels}}} 4294967296\n"
        f"gpushare_container_memory_borrowed_bytes{{{labels}}} 1073741824\n"
        'gpushare_gpu_memory_free_bytes{uuid="GPU-a"} 2097152\n'
        'gpushare_gpu_memory_short_bytes{uuid="GPU-a"} 1048576\n'
    )
    row = FigureHistory().rows("n1", metrics(used="3221225472") + more, 1000.0)["figures/GPU-a"]
    (client,) = row["clients"]
    assert (client["used"], client["granted"], client["limit"], client["borrowed"]) == (3072, 2048, 4096, 1024)
    assert (row["free"], row["short"]) == (2, 1)
    old = FigureHistory().rows("n1", metrics(age=90.0) + more, 1000.0)["figures/GPU-a"]
    assert (old["free"], old["short"]) == (None, None), "a reading that is old says nothing of now"


def test_a_share_says_how_far_its_clients_may_borrow_and_a_node_who_does() -> None:
    assert share_rows(share())["share/inference"]["lends"] == ""
    memory = {"default": "8Gi", "limits": {"max": "24Gi", "whenShort": "Terminate"}}
    lends = share(clients={"perGpu": 4, "threads": {"default": 25}, "memory": memory})
    assert share_rows(lends)["share/inference"]["lends"] == "up to 24Gi each; when a GPU is short: Terminate"
    borrower = {
        "uuid": "GPU-a", "share": "inference", "namespace": "ml", "pod": "x", "container": "main", "reservedMib": 8192,
        "limitMib": 24576, "observedMib": 9000, "since": "2026-01-01T00:00:00Z", "endsAt": "2026-01-01T00:01:00Z",
    }  # fmt: skip
    row = node_rows(gpu_node("GPU-a", daemons=[DAEMON], borrowers=[borrower]))["node/n1"]
    assert row["borrowers"] == [
        {"uuid": "GPU-a", "namespace": "ml", "pod": "x", "container": "main", "reserved": 8192, "limit": 24576,
         "endsAt": "2026-01-01T00:01:00Z"}
    ]  # fmt: skip


def test_the_history_goes_back_for_some_minutes() -> None:
    history = FigureHistory()
    rows: dict[str, Any] = {}
    for second in range(0, HISTORY_SECONDS + 100, 50):
        rows = history.rows("n1", metrics(second / 1000), float(second))
    shown = [at for at, _ in rows["figures/GPU-a"]["history"]]
    assert (shown[0], shown[-1]) == (50, 350)


def test_a_reading_of_nvml_that_is_old_is_no_utilisation() -> None:
    row = FigureHistory().rows("n1", metrics(age=90.0), 0.0)["figures/GPU-a"]
    assert (row["utilization"], row["history"]) == (None, [])


@pytest.mark.parametrize("text", [metrics(used="NaN"), metrics(used="+Inf"), 'gpushare_gpu_utilization_ratio{uuid="'])
def test_what_are_no_metrics_is_told(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        FigureHistory().rows("n1", text, 0.0)
