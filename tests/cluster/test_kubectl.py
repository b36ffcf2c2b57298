"""`kubectl gpushare` against a real API server: what it says is what is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.harness import Harness, gpu_share, wait_until

SPEC = {"clients": {"perGpu": 4, "threads": {"default": 25, "max": 50}, "memory": {"default": "8Gi"}}}


def plugin(harness: Harness, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpushare.cli.kubectl.main", *arguments]
    environment = {**os.environ, **harness.stack.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def ask(harness: Harness, *arguments: str) -> dict[str, Any]:
    """The JSON answer of the plugin, which must exit with 0."""
    done = plugin(harness, *arguments, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_plan_top_status_and_check_agree_with_what_then_happens(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "share.yaml"
    file.write_text(json.dumps(gpu_share("planned", SPEC | {"gpus": {"perNode": 1}})))
    planned = ask(harness, "plan", str(file))
    assert (planned["slots"], [it["what"] for it in planned["gpus"]]) == (4, ["taken"])
    assert harness.kubectl.find("gpushare", "planned") is None, "a plan writes nothing"

    with harness.share("planned", per_node=1, per_gpu=4) as share, harness.namespace() as tenant:
        held = [it["uuid"] for it in harness.gpu_node()["spec"]["assignments"] if it["share"] == share.name]
        assert held == [it["uuid"] for it in planned["gpus"]]
        (name,) = tenant.neighbours("planned", 1)
        granted = tenant.events_of(name, "limits")[0]["granted"]["memory"]
        (client,) = wait_until("top shows the client", lambda: ask(harness, "top", "-n", tenant.name)["clients"])
        assert (client["pod"], client["container"], client["share"]) == (name, "app", "planned")
        assert client["memoryGrantedMiB"] << 20 == granted
        assert 0 < client["memoryUsedMiB"] <= client["memoryGrantedMiB"]
        told = {it["metadata"]["name"]: it for it in ask(harness, "status")["shares"]}
        assert told["planned"]["status"]["slots"] == share.get()["status"]["slots"]
        assert ask(harness, "plan", str(file))["gpus"][0]["what"] == "kept"
    assert {it["level"] for it in ask(harness, "check")["checks"]} == {"ok"}


def test_a_share_that_the_webhook_refuses_is_refused_by_plan_with_its_words(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "share.yaml"
    file.write_text(json.dumps(gpu_share("wrong", SPEC | {"gpus": {"products": [" "]}})))
    done = plugin(harness, "plan", str(file))
    assert done.returncode == 2
    assert "spec.gpus.products[0]" in done.stderr
