"""`kubectl gpushare`: what each command says of a cluster, as tables and as JSON."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.cli.kubectl import main as program
from gpushare.cli.kubectl.plan import PlanError, plan, read
from gpushare.cli.kubectl.report import show
from gpushare.cli.kubectl.status import status
from gpushare.cli.kubectl.top import Scrape, top
from gpushare.fleet import NodeView, Snapshot
from tests.unit.cli.cluster_objects import LIMITS, gpu_node, share, shown

# -- status


def test_status_tells_shares_gpus_and_what_is_wrong_with_them() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "DaemonNotReady", "message": "1 of 1 MPS daemon not ready",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    told = {"summary": "0/1", "slots": {"total": 0, "used": 2}, "conditions": [ready]}
    daemon = {"uuid": "GPU-0", "share": "inference", "ready": False, "reason": "ControlTimeout", "wanted": LIMITS,
              "message": "the control daemon does not answer"}  # fmt: skip
    node = gpu_node(
        "GPU-0", "GPU-1", daemons=[daemon], holders=[{"uuid": "GPU-0", "share": "inference", "slots": [0, 3]}]
    )
    unready = GpuShare.model_validate(share().wire() | {"status": told})
    report = status([unready], [node])
    text = shown(report)
    for part in (
        "inference",
        "0/1",
        "2/0",
        "DaemonNotReady",
        "ControlTimeout",
        "does not answer",
        "Free",
        "1 of 1 MPS",
    ):
        assert part in text
    assert report.data["nodes"][0]["status"]["daemons"][0]["reason"] == "ControlTimeout"


def test_status_tells_which_claims_fit_nowhere_and_why() -> None:
    claims = {"pending": 1, "unplaced": [{"claim": "ml/big", "message": "10 percent of threads lack"}]}
    waiting = GpuShare.model_validate(share().wire() | {"status": {"claims": claims}})
    text = shown(status([waiting], [gpu_node("GPU-0")]))
    for part in ("ResourceClaim ml/big", "ClaimPending", "10 percent of threads lack"):
        assert part in text


def test_status_of_a_sound_cluster_has_no_list_of_problems() -> None:
    assert "Problems" not in shown(status([], [gpu_node("GPU-0")]))
    assert "none; create one" in shown(status([], []))


def test_what_a_node_tells_is_shown_as_it_is_and_never_as_markup() -> None:
    daemon = {
        "uuid": "GPU-0",
        "share": "a",
        "reason": "DaemonFailed",
        "message": "[red]odd[/red] [/]",
        "wanted": LIMITS,
    }
    assert "[red]odd[/red] [/]" in shown(status([], [gpu_node("GPU-0", daemons=[daemon])]))


# -- top

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
    one = Scrape("n1", metrics("small", 100, 8192) + metrics("large", 9000, 8192, "other"))
    report = top([one, Scrape("n2", metrics("strayed", 500, None))], None, None)
    assert [client["pod"] for client in report.data["clients"]] == ["large", "strayed", "small"]
    text = shown(report)
    for part in ("9000/8192 MiB", "110%", "500/- MiB", "25%", "n2"):
        assert part in text
    assert report.code == 0


def test_top_can_be_asked_for_one_share_and_names_the_nodes_that_did_not_answer() -> None:
    scrapes = [Scrape("n1", metrics("a", 1, 2) + metrics("b", 1, 2, "other")), Scrape("n2", "", "was not reached")]
    report = top(scrapes, "team", "other")
    assert [client["pod"] for client in report.data["clients"]] == ["b"]
    assert report.data["unreachable"] == [{"node": "n2", "problem": "was not reached"}]
    assert report.code == 1
    assert top(scrapes, "elsewhere", None).data["clients"] == []


# -- plan


def fleet(*shares: GpuShare, node: GpuNode | None = None, **view: Any) -> Snapshot:
    values = {"labels": {"pool": "gpu"}, "ready": True, "allocatable": frozenset(), **view}
    return Snapshot(shares, (NodeView("n1", gpu_node=node or gpu_node("GPU-0", "GPU-1"), **values),))


def test_plan_of_a_new_share_says_which_gpus_it_would_take_and_how_far_memory_goes() -> None:
    report = plan(fleet(), share(gpus={"perNode": 1}))
    assert [(it["uuid"], it["what"]) for it in report.data["gpus"]] == [("GPU-0", "taken")]
    assert (report.data["slots"], report.data["memoryPerGpuMiB"], report.code) == (8, 8 * 8192, 0)
    assert "46% of 143155Mi" in shown(report)
    assert [it["reason"] for it in report.data["refused"]] == ["OverPerNode"]


HELD = {"uuid": "GPU-0", "share": "old", "ready": True, "reason": "Ready", "wanted": LIMITS}


def test_plan_of_a_share_by_claims_says_what_can_be_claimed_of_each_gpu() -> None:
    sizes = [{"name": "small", "threads": 10, "memory": "8Gi"}]
    report = plan(fleet(), share(delivery="ResourceClaim", sizes=sizes, gpus={"perNode": 1}))
    text = shown(report)
    for part in ("8 at most, 8 on each GPU", "claims share 100% of each GPU", "size small", "10%, 8Gi"):
        assert part in text


def test_plan_takes_what_is_free_and_names_who_has_the_rest() -> None:
    live = fleet(share("old", gpus={"perNode": 1}), node=gpu_node("GPU-0", "GPU-1", daemons=[HELD]))
    report = plan(live, share("new", "2026-02-01T00:00:00Z"))
    assert [(it["uuid"], it["what"]) for it in report.data["gpus"]] == [("GPU-1", "taken")]
    ((reason, message),) = [(it["reason"], it["message"]) for it in report.data["refused"]]
    assert reason == "HeldByShare"
    assert '"old"' in message


def test_plan_of_a_share_that_gets_nothing_says_why_for_every_gpu_and_fails() -> None:
    greedy = {"perGpu": 8, "memory": {"default": "80Gi"}}
    report = plan(fleet(), share(clients=greedy))
    assert [it["reason"] for it in report.data["refused"]] == ["MemoryOvercommitted"] * 2
    assert (report.data["gpus"], report.code) == ([], 1)


def test_plan_of_a_changed_share_tells_what_it_keeps_and_gives_back() -> None:
    daemons = [{"uuid": uuid, "share": "inference", "ready": True, "wanted": LIMITS} for uuid in ("GPU-0", "GPU-1")]
    live = share()
    report = plan(fleet(live, node=gpu_node("GPU-0", "GPU-1", daemons=daemons)), share(gpus={"perNode": 1}))
    assert {it["uuid"]: it["what"] for it in report.data["gpus"]} == {"GPU-0": "kept", "GPU-1": "given back once idle"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Pod", "0 GpuShares in 1 documents"),
        ("kind: GpuShare\n---\nkind: GpuShare", "2 GpuShares"),
        ("kind: GpuShare\napiVersion: v1\nmetadata: {name: a}", "apiVersion 'v1'"),
        ("a: [", "not YAML"),
        ("", "0 GpuShares in 0 documents"),
    ],
)
def test_a_file_that_holds_no_share_is_refused_with_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(PlanError, match=problem.replace("(", "\\(")):
        read(text)


def test_the_example_of_the_readme_can_be_planned() -> None:
    assert read(Path("examples/inference.yaml").read_text())["metadata"]["name"] == "inference"


# -- the program


def test_json_is_json_and_nothing_else() -> None:
    text = io.StringIO()
    assert show(top([], None, None), "json", Console(file=text, soft_wrap=True)) == 0
    assert json.loads(text.getvalue()) == {"clients": [], "unreachable": []}


def test_without_a_cluster_it_says_so_and_fails(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"}
    done = subprocess.run(
        [sys.executable, "-m", "gpushare.cli.kubectl.main", "status"],
        env=environment | {"KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "\nerror: " in "\n" + done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_is_named(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        program.main(["plan", "/nowhere.yaml"])
    assert "cannot read /nowhere.yaml" in capsys.readouterr().err
