"""`kubectl gpushare recommend` against a real Prometheus with a week of history: `make recommend-test`.

kubectl is a stand-in that lists shares and a node; Prometheus is asked over HTTP by the program.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.kube.resources import GPU_NODES, GPU_SHARES
from gpushare.kubectl.rules.recommend.advice import patched
from tests.prometheus.week import GPU_MIB, SHARES, gpu_node, shares
from tests.unit.kubectl import stand_in

SECONDS = 300


@pytest.fixture
def ask(prometheus: str, tmp_path: Path) -> Any:
    """Runs the program with these arguments and the stand-in for kubectl; gives what it printed."""
    known = {GPU_NODES: [gpu_node()], GPU_SHARES: shares()}
    kubectl = stand_in.make(tmp_path, {f"GET {kind.path()}": (200, {"items": items}) for kind, items in known.items()})
    environment = os.environ | stand_in.on_path(kubectl)

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "gpushare.kubectl.main", "recommend", f"--prometheus={prometheus}"]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def test_a_week_gives_each_share_what_its_figures_support(ask: Any) -> None:
    answer = json.loads(ask("-o", "json"))
    advice = {(item["share"], item["kind"]): item for item in answer["recommendations"]}
    assert {key: item["recommended"] for key, item in advice.items()} == {
        ("roomy", "memory granted and never used"): "memory.default 3328Mi",
        ("roomy", "fewer clients"): "perGpu 4",
        ("roomy", "threads that nobody could use"): "threads.default 30",
        ("short", "more clients"): "perGpu 8",
        ("short", "a GPU of its own"): "a whole GPU",
        ("classed", "held without work"): "end it, or scale its controller down",
        ("classed", "could be best effort"): "gpushare.dev/class: BestEffort",
    }
    memory = advice["roomy", "memory granted and never used"]
    assert memory["figures"].items() >= {"mostUsedMiB": 3000, "p95UsedMiB": 2000, "containers": 3}.items()
    assert memory["figures"]["samples"] == pytest.approx(2016, abs=5), "a restart of the agent costs no sample"
    assert (memory["sure"], advice["short", "more clients"]["sure"]) == ("high", "medium")
    more = advice["short", "more clients"]["figures"]
    assert (more["clientsByMemory"], more["p95BusyPercentWhenFull"]) == (8, 30.0)
    assert more["fullPercent"] == pytest.approx(50, abs=2)
    assert advice["classed", "held without work"]["about"] == "ml/idle-0"
    batch = advice["classed", "could be best effort"]
    assert (batch["about"], batch["sure"]) == ("ml/train", "medium")
    assert batch["figures"]["activePercent"] == pytest.approx(75, abs=1), "a restart of the agent costs little of it"
    own = advice["short", "a GPU of its own"]
    assert (own["about"], own["figures"]["faults"], own["figures"]["withNeighbours"]) == ("ml/crash", 3, 3)


def test_each_patch_gives_a_share_that_can_be(ask: Any) -> None:
    for advice in json.loads(ask("-o", "json"))["recommendations"]:
        if advice["patch"] is not None:
            share = GpuShare.model_validate({"metadata": {"name": advice["share"]}, "spec": SHARES[advice["share"]]})
            changed = patched(share, advice["patch"])
            assert changed != share
            assert changed.spec.clients.per_gpu * changed.memory_default_mib <= GPU_MIB


def test_what_is_too_short_or_not_seen_is_said_and_nothing_is_recommended(ask: Any) -> None:
    reasons = {item["share"]: item["reason"] for item in json.loads(ask("-o", "json"))["notRecommended"]}
    assert reasons["changed"].startswith("memory.default 8Gi: not seen in 7d") or "too short" in reasons["changed"]
    said = [item["reason"] for item in json.loads(ask("-o", "json", "--share=changed"))["notRecommended"]]
    assert any(text.startswith("perGpu 4: seen for 3h, too short a history") for text in said), said
    unseen = json.loads(ask("-o", "json", "--share=unseen"))
    assert unseen["recommendations"] == []
    assert {item["reason"] for item in unseen["notRecommended"]} == {
        "memory.default 8Gi: not seen in 7d, so nothing is recommended",
        "perGpu 4: not seen in 7d, so nothing is recommended",
    }


def test_a_window_of_an_hour_recommends_nothing(ask: Any) -> None:
    answer = json.loads(ask("-o", "json", "--window=1h", "--share=roomy"))
    assert answer["recommendations"] == []
    assert all("at least 1d is needed" in item["reason"] for item in answer["notRecommended"])


def test_people_get_the_figures_the_limits_of_them_and_lines_to_paste(ask: Any) -> None:
    text = ask()
    assert "none of 3 containers with the default was seen with more than 3000Mi (ml/serve-5d4f7b9c8d-x2k4p" in text
    assert "Nothing was changed." in text
    assert "cannot be known:" in text
    assert """kubectl patch gpushare short --type merge -p '{"spec":{"clients":{"perGpu":8}}}'\n""" in text
