"""`kubectl gpushare top`: what containers use against what they are granted."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpushare.agent.status.metrics import FAMILIES, USED
from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from gpushare.kubectl.commands.top import AGENTS
from gpushare.kubectl.main import main
from gpushare.kubectl.views.top import CONTAINER, SHOWN, Scrape, granted, top
from tests.unit.kubectl import stand_in
from tests.unit.kubectl.cluster_objects import gpu_node, pod, shown

LABELS = 'namespace="team",pod="{pod}",container="app",share="{share}",uuid="GPU-0"'


def metrics(pod: str, used: int, granted: int | None, share: str = "inference") -> str:
    labels = LABELS.format(pod=pod, share=share)
    lines = [f"gpushare_container_memory_used_bytes{{{labels}}} {used << 20}",
             f"gpushare_container_processes{{{labels}}} 1.0"]  # fmt: skip
    if granted is not None:
        lines += [f"gpushare_container_memory_granted_bytes{{{labels}}} {granted << 20}",
                  f"gpushare_container_threads_granted_ratio{{{labels}}} 0.25",
                  f"gpushare_container_processes_granted{{{labels}}} 1.0"]  # fmt: skip
    return "\n".join(lines) + "\n"


def test_top_sorts_clients_by_what_they_use_and_shows_it_against_the_grant() -> None:
    scrape = Scrape("n1", metrics("small", 100, 8192) + metrics("large", 9000, 8192, "other"))
    report = top([scrape, Scrape("n2", metrics("strayed", 500, None))], [])
    assert [client["pod"] for client in report.data["clients"]] == ["large", "strayed", "small"]
    text = shown(report)
    for part in ("9000Mi  8192Mi  110%  1/1", "500Mi   -       -     1/-", "25%", "n2"):
        assert part in text
    assert report.code == 0


def test_top_shows_one_share_and_names_silent_nodes() -> None:
    scrapes = [Scrape("n1", metrics("a", 1, 2) + metrics("b", 1, 2, "other")), Scrape("n2", "", "was not reached")]
    report = top(scrapes, [], "team", "other")
    assert [client["pod"] for client in report.data["clients"]] == ["b"]
    assert report.data["unreachable"] == [{"node": "n2", "problem": "was not reached"}]
    assert report.code == 1
    assert top(scrapes, [], "elsewhere").data["clients"] == []


def test_top_shows_how_long_a_containers_clients_are_attached() -> None:
    def attached(first: int, last: int) -> str:
        labels = LABELS.format(pod="served", share="inference")
        return (
            f"{metrics('served', 1, 2)}gpushare_container_attached_seconds{{{labels}}} {first}.5\n"
            f"gpushare_container_last_attached_seconds{{{labels}}} {last}.5\n"
        )

    for first, last, text in ((90, 90, "90s"), (4 * 3600, 300, "4h..5m0s")):
        report = top([Scrape("n1", attached(first, last))], [])
        assert (report.data["clients"][0]["attachedSeconds"], report.data["clients"][0]["lastAttachedSeconds"]) == (
            first,
            last,
        )
        assert text in shown(report)
    unknown = top([Scrape("n1", metrics("served", 1, 2))], [])
    assert unknown.data["clients"][0]["attachedSeconds"] is None


def test_top_shows_a_class_and_how_long_it_gave_way() -> None:
    labels = LABELS.format(pod="batch", share="inference")
    classed = (
        f"{metrics('batch', 1, 2)}"
        f'gpushare_container_active_seconds_total{{{labels},class="BestEffort"}} 61.2\n'
        f'gpushare_container_gave_way_seconds_total{{{labels},protected="web/api"}} 8.0\n'
        f'gpushare_container_gave_way_seconds_total{{{labels},protected=""}} 1.0\n'
    )
    report = top([Scrape("n1", classed + metrics("plain", 0, 2))], [])
    batch, plain = report.data["clients"]
    assert (batch["class"], batch["activeSeconds"]) == ("BestEffort", 61.2)
    assert batch["gaveWaySeconds"] == {"web/api": 8.0, "": 1.0}
    assert (plain["class"], plain["activeSeconds"], plain["gaveWaySeconds"]) == ("", None, None)
    assert "BestEffort  61s     9s" in shown(report)
    assert "CLASS" not in shown(top([Scrape("n1", metrics("plain", 1, 2))], []))


HOLDER = {"uuid": "GPU-0", "share": "inference", "slots": [0, 1, 2], "pods": ["team/a", "team/quiet"]}


def test_top_names_who_holds_slots_without_a_client() -> None:
    node = gpu_node("GPU-0", holders=[HOLDER])
    report = top([Scrape("n1", metrics("a", 1, 2))], [node])
    (idle,) = report.data["idle"]
    assert (idle["slotsHeld"], idle["clients"], idle["pods"]) == (3, 1, ["team/quiet"])
    assert "team/quiet" in shown(report)
    assert top([Scrape("n1", metrics("a", 1, 2))], [node], "elsewhere").data["idle"] == []
    busy = "".join(metrics(pod, 1, 2) for pod in "abc")
    assert top([Scrape("n1", busy)], [node]).data["idle"] == []


def test_of_a_node_whose_figures_are_unknown_nobody_is_called_idle() -> None:
    node = gpu_node("GPU-0", holders=[HOLDER])
    assert top([Scrape("n1", "", "was not reached")], [node]).data["idle"] == []


def test_the_metrics_that_top_reads_are_those_that_agents_serve() -> None:
    served = {f"{family.name}_total" if family.kind == "counter" else family.name for family in FAMILIES}
    assert served >= SHOWN
    assert USED.labels == CONTAINER


GRANT = client_environment(Grant("inference", threads=25, memory_mib=8192, processes=1), None)
RUNS = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
ON_GPU = {"name": "gpushare.dev/inference", "resources": [{"resourceID": "GPU-0::3", "health": "Healthy"}]}
NOTE = "memory used is not shown"


def running(name: str = "app", *, grant: bool = True, **status: Any) -> dict[str, Any]:
    """A pod with a slot whose container runs."""
    made = pod(name, status={"phase": "Running", "containerStatuses": [RUNS | status]})
    made["spec"]["nodeName"] = "n1"
    if grant:
        made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in GRANT.items()]
    return made


def test_top_without_rights_to_metrics_shows_grants_and_a_note() -> None:
    waits = pod("waits")
    plain = running("plain")
    plain["spec"]["containers"][0]["resources"] = {}
    report = granted([waits, running(allocatedResourcesStatus=[ON_GPU]), plain], [], "ml", None, NOTE)
    (client,) = report.data["clients"]
    assert (client["pod"], client["node"], client["share"], client["uuid"]) == ("app", "n1", "inference", "GPU-0")
    assert (client["memoryGrantedMiB"], client["threadsGrantedPercent"], client["processesGranted"]) == (8192, 25, 1)
    assert (client["memoryUsedMiB"], client["processes"], report.code) == (None, None, 0)
    text = shown(report)
    assert text.splitlines()[1].split() == ["app", "main", "n1", "inference", "GPU-0", "-", "8192Mi", "-", "-/1", "25%"]
    assert text.endswith(f"{NOTE}\n")
    assert NOTE not in "".join(shown(report, form=form) for form in ("name",))
    assert granted([running()], [], "ml", "other", NOTE).data["clients"] == []


def test_top_leaves_empty_what_older_clusters_do_not_say() -> None:
    (client,) = granted([running(grant=False)], [], None, None, NOTE).data["clients"]
    assert (client["uuid"], client["memoryGrantedMiB"], client["threadsGrantedPercent"]) == ("", None, None)


CLAIM = {
    "metadata": {"name": "app-gpu-x", "namespace": "ml"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "inference.gpushare.dev"}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "driver": "gpushare.dev",
                        "device": "gpu-0a",
                        "consumedCapacity": {"threads": "50", "memory": "4Gi", "clients": "2"},
                    }
                ]
            }
        }
    },
}


def test_a_claims_part_is_that_of_the_container_that_uses_it() -> None:
    client_pod = running("app", grant=False)
    client_pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    client_pod["spec"]["containers"].append({"name": "beside"})
    client_pod["status"]["containerStatuses"].append(RUNS | {"name": "beside"})
    client_pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    client_pod["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "app-gpu-x"}]
    (client,) = granted([client_pod], [CLAIM], "ml", None, NOTE).data["clients"]
    assert (client["container"], client["share"], client["uuid"]) == ("main", "inference", "GPU-0a")
    assert (client["memoryGrantedMiB"], client["threadsGrantedPercent"], client["processesGranted"]) == (4096, 50, 2)
    assert granted([client_pod], [CLAIM | {"status": {}}], "ml", None, NOTE).data["clients"] == []


FORBIDDEN = (403, {"kind": "Status", "reason": "Forbidden", "message": "no"})
SYSTEM = "/api/v1/namespaces/gpushare-system/pods"
AGENT_LIST = f"GET {SYSTEM}?labelSelector={quote(AGENTS, safe='')}"
AGENT = {
    "metadata": {"name": "a-1", "namespace": "gpushare-system"},
    "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "metrics", "containerPort": 9}]}]},
}


@pytest.mark.parametrize(
    "answers",
    [
        {AGENT_LIST: FORBIDDEN},
        {AGENT_LIST: (200, {"items": [AGENT]}), f"GET {SYSTEM}/a-1%3A9/proxy/metrics": FORBIDDEN},
    ],
)
def test_a_tenant_without_rights_in_our_namespace_gets_his_own_namespace(
    tmp_path: Path, answers: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "GET /apis/gpushare.dev/v1alpha1/gpunodes": FORBIDDEN,
        "GET /apis/gpushare.dev/v1alpha1/gpushares": FORBIDDEN,
        "GET /api/v1/namespaces/ml": FORBIDDEN,
        "GET /api/v1/namespaces/ml/pods": (200, {"items": [running()]}),
    }
    monkeypatch.setenv("PATH", stand_in.on_path(stand_in.make(tmp_path, more | answers))["PATH"])
    assert main(["top", "-n", "ml", "--share", "inference"]) == 0
    said = capsys.readouterr()
    assert "8192Mi" in said.out
    assert "get pods/proxy in namespace gpushare-system" in said.err


def test_top_shows_limits_and_what_is_borrowed_where_somebody_may_borrow() -> None:
    labels = LABELS.format(pod="burst", share="inference")
    lines = (
        f"gpushare_container_memory_limit_bytes{{{labels}}} {24576 << 20}\n"
        f"gpushare_container_memory_borrowed_bytes{{{labels}}} {11808 << 20}\n"
    )
    report = top([Scrape("n1", metrics("burst", 20_000, 8192) + lines + metrics("plain", 100, 8192))], [])
    first, second = report.data["clients"]
    assert (first["memoryLimitMiB"], first["memoryBorrowedMiB"]) == (24576, 11808)
    assert second["memoryBorrowedMiB"] is None
    text = shown(report)
    assert "BORROWED" in text
    assert "20000Mi  8192Mi  244%  24576Mi  11808Mi" in text
    assert "BORROWED" not in shown(top([Scrape("n1", metrics("plain", 100, 8192))], []))
