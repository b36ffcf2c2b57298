"""Places and who waits for them, as users see it: `why`, `status`, `top`, `describe` and the page."""

from datetime import UTC, datetime
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.page.content.rows import node_rows, share_rows
from gpushare.kubectl.views.describe import describe_node, describe_share
from gpushare.kubectl.views.pods.pod import PodFacts
from gpushare.kubectl.views.pods.why import Stage, why
from gpushare.kubectl.views.status import status
from gpushare.kubectl.views.top import Scrape, top
from tests.unit.kubectl.cluster_objects import gpu_node, pod, share, shown

AT = datetime(2026, 1, 1, tzinfo=UTC)
PLACES: dict[str, Any] = {
    "uuid": "GPU-0",
    "share": "inference",
    "limit": 3,
    "used": 3,
    "waiting": 9,
    "held": ["ml/trains/main", "secret/a/main", "secret/b/main"],
    "queue": ["ml/first/main", "ml/app/main"],
}
NODE = gpu_node("GPU-0", places=[PLACES], holders=[{"uuid": "GPU-0", "share": "inference", "slots": [0, 1, 2, 3]}])


def queued() -> GpuShare:
    queue = {"slots": 32, "maxWait": "30m", "idleAfter": "20m"}
    made = share(clients={"perGpu": 3, "memory": {"default": "8Gi"}, "queue": queue})
    counts = {"places": {"total": 3, "used": 3, "waiting": 9}, "slots": {"total": 35, "used": 4}}
    return made.model_copy(update={"status": made.status.model_validate(counts)})


def test_why_says_position_and_holders_of_the_pods_own_namespace_alone() -> None:
    running = pod(spec={"nodeName": "n1"}, status={"phase": "Running"})
    answer = why(PodFacts(running, [], {"inference": queued()}, [NODE]))
    assert (answer.stage, answer.held) == (Stage.PLACE, True)
    assert answer.sentence == (
        "it runs, and container main waits for a place on GPU GPU-0, at position 2 of 9: 3 of 3 places are taken, "
        "by pod ml/trains and 2 containers of other namespaces"
    )
    assert "secret" not in f"{answer}"


def test_why_of_a_pod_with_a_place_is_that_it_runs() -> None:
    running = pod("trains", spec={"nodeName": "n1"}, status={"phase": "Running"})
    assert why(PodFacts(running, [], {"inference": queued()}, [NODE])).stage is Stage.RUNNING


def test_status_and_top_show_places_and_who_is_next() -> None:
    reports = [status([queued()], [NODE]), top([Scrape("n1", "")], [NODE])]
    for report in reports:
        text = shown(report)
        assert "PLACES" in text
        assert "3/3" in text
        assert "ml/first/main, ml/app/main" in text
    assert reports[1].data["idle"] == [], "a held slot without a client is the rule with a queue"
    assert "PLACES" not in shown(status([share()], [gpu_node("GPU-0")]))
    assert "secret" not in shown(top([Scrape("n1", "")], [NODE], "ml"))


def test_a_share_and_a_node_are_described_with_their_queue() -> None:
    text = shown(describe_share(queued(), [NODE], [], [], AT))
    assert "4 held of 35, 35 on each GPU" in text
    assert "3 used of 3, 9 wait; 3 on each GPU; waits of 30m at most, a client idle for 20m may lose its own" in text
    assert "ml/first/main" in shown(describe_node(NODE, [], AT))
    assert "Places:" not in shown(describe_share(share(), [gpu_node("GPU-0")], [], [], AT))


def test_the_page_has_places_and_the_queue_of_each_gpu() -> None:
    assert share_rows(queued())["share/inference"]["places"].startswith("3 used of 3, 9 wait")
    assert share_rows(share())["share/inference"]["places"] == ""
    row = node_rows(NODE)["gpu/GPU-0"]
    assert (row["places"], row["waiting"]) == ("3 of 3", ["ml/first/main", "ml/app/main"])
