"""`kubectl gpushare` against a real API server: what it says is what is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from tests.cluster.harness import NODE, Harness, Tenant, gpu_share, wait_until

SPEC = {"clients": {"perGpu": 4, "threads": {"default": 25, "max": 50}, "memory": {"default": "8Gi"}}}
NO_IMAGE = "gpushare/none:0"


def plugin(harness: Harness, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpushare.kubectl.main", *arguments]
    environment = {**os.environ, **harness.stack.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def ask(harness: Harness, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON answer of the plugin, which must exit with `code`."""
    done = plugin(harness, *arguments, "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def deployment(name: str, template: Object) -> Object:
    labels = {"app": name}
    metadata = {"labels": labels, "annotations": template["metadata"]["annotations"]}
    spec = {**template["spec"], "restartPolicy": "Always"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": metadata, "spec": spec}},
    }


def why(harness: Harness, tenant: Tenant, name: str, words: str) -> dict[str, Any]:
    """The answer about a pod that is held back, once it has these words."""

    def answer() -> dict[str, Any] | None:
        explanation = json.loads(plugin(harness, "why", name, "-n", tenant.name, "-o", "json").stdout or "{}")
        return explanation if words in explanation.get("sentence", "") else None

    explanation = wait_until(
        f"why {name}: {words}", answer, 60, lambda: plugin(harness, "why", name, "-n", tenant.name)
    )
    assert explanation is not None
    return explanation


def _full(held: dict[str, int], slots: int) -> dict[str, int]:
    """What is held, once it is so many slots."""
    return held if sum(held.values()) == slots else {}


def top_client(harness: Harness, namespace: str) -> Any:
    (client,) = ask(harness, "top", "-n", namespace)["clients"]
    return client


def test_plan_top_status_and_check_agree_with_what_then_happens(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "share.yaml"
    file.write_text(json.dumps(gpu_share("planned", SPEC | {"gpus": {"perNode": 1}})))
    planned = ask(harness, "plan", str(file))
    assert (planned["slots"], [gpu["what"] for gpu in planned["gpus"]]) == (4, ["taken"])
    assert harness.kubectl.find("gpushare", "planned") is None, "a plan writes nothing"

    with harness.share("planned", per_node=1, per_gpu=4) as share, harness.namespace() as tenant:
        held = [
            assignment["uuid"]
            for assignment in harness.gpu_node()["spec"]["assignments"]
            if assignment["share"] == share.name
        ]
        assert held == [gpu["uuid"] for gpu in planned["gpus"]]
        (name,) = tenant.neighbours("planned", 1)
        granted = tenant.events_of(name, "limits")[0]["granted"]["memory"]
        (client,) = wait_until("top shows the client", lambda: ask(harness, "top", "-n", tenant.name)["clients"])
        assert (client["pod"], client["container"], client["share"]) == (name, "app", "planned")
        assert client["memoryGrantedMiB"] << 20 == granted
        assert 0 < client["memoryUsedMiB"] <= client["memoryGrantedMiB"]
        wait_until("top shows since when", lambda: top_client(harness, tenant.name)["attachedSeconds"] is not None)
        assert top_client(harness, tenant.name)["attachedSeconds"] <= 600
        told = {item["metadata"]["name"]: item for item in ask(harness, "status")["shares"]}
        assert told["planned"]["status"]["slots"] == share.get()["status"]["slots"]
        assert ask(harness, "plan", str(file))["gpus"][0]["what"] == "kept"
    assert [check for check in ask(harness, "check")["checks"] if check["level"] != "ok"] == []


def test_a_pod_that_defragment_names_leaves_a_gpu_free_once_started_again(harness: Harness) -> None:
    clients: dict[str, Any] = SPEC["clients"]
    with harness.share("scattered", clients=clients) as share, harness.namespace() as tenant:
        apart = deployment("apart", tenant.pod("any", "scattered", "depart", grace=1))
        apart["spec"]["replicas"] = 2
        tenant.kubectl.create(apart)
        wait_until("one client on each GPU", lambda: _held(harness, "scattered") == [1, 1], 60)
        share.apply(clients=clients | {"placement": "Pack"})
        (plan,) = ask(harness, "defragment", "scattered")["shares"]
        (move,) = plan["moves"]
        kept, freed = move["to"]["uuid"], move["from"]["uuid"]
        assert [gpu["uuid"] for gpu in plan["freed"]] == [freed]
        (name,) = plugin(harness, "defragment", "scattered", "-o", "name").stdout.split()
        assert name.partition("/")[2] == move["pod"].partition("/")[2]
        tenant.kubectl("delete", name, "--wait=false")
        wait_until("both on one GPU", lambda: harness.held_by_gpu("scattered") == {kept: 2}, 90)
        (after,) = ask(harness, "defragment", "scattered")["shares"]
        assert after["moves"] == []
        tenant.kubectl.delete("deployment", "apart")


def _held(harness: Harness, share: str) -> list[int]:
    return sorted(harness.held_by_gpu(share).values())


def test_a_share_that_the_webhook_refuses_is_refused_by_plan_in_its_words(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "share.yaml"
    file.write_text(json.dumps(gpu_share("wrong", SPEC | {"gpus": {"products": [" "]}})))
    done = plugin(harness, "plan", str(file))
    assert done.returncode == 2
    assert "spec.gpus.products[0]" in done.stderr


def test_why_counts_pods_rather_than_what_was_reported_of_them(harness: Harness) -> None:
    """A burst fills a share within a moment; its status follows many seconds later."""
    with harness.share("burst", per_node=1, per_gpu=4), harness.namespace() as tenant:
        for count in range(5):
            tenant.start(tenant.pod(f"burst-{count}", "burst", "depart"))
        wait_until("four are placed", lambda: sum("nodeName" in pod["spec"] for pod in tenant.pods()) == 4)
        last = next(pod["metadata"]["name"] for pod in tenant.pods() if "nodeName" not in pod["spec"])
        answer = why(harness, tenant, last, "it waits for a slot")
        assert answer["sentence"] == "it waits for a slot of share burst: all 4 are held, on 1 GPU"


def test_status_says_that_no_operator_leads_and_agrees_with_itself(harness: Harness) -> None:
    with harness.share("alone", per_node=1, per_gpu=2), harness.namespace() as tenant:
        tenant.neighbours("alone", 1)
        wait_until(
            "no problem", lambda: plugin(harness, "status").returncode == 0, 40, lambda: plugin(harness, "status")
        )
        harness.system("scale", "deployment/gpushare-operator", "--replicas=0")
        try:
            wait_until("status says so", lambda: plugin(harness, "status").returncode == 1, 120)
            assert [problem["reason"] for problem in ask(harness, "status", code=1)["problems"]] == ["OperatorSilent"]
            tenant.neighbours("alone", 1, prefix="later")
            wait_until(
                "two slots are held", lambda: harness.held_by_gpu("alone") and _held(harness, "alone") == [2], 40
            )
            lines = [line.split() for line in plugin(harness, "status").stdout.splitlines()]
            (share,) = [line for line in lines if line[:1] == ["alone"]]
            (gpu,) = [line for line in lines if line[:1] == [NODE] and "alone" in line]
            assert (share[2], gpu[-1]) == ("2", "2"), "figures of one moment"
            assert share[-2:] == ["Unknown", "OperatorSilent"]
            assert "Operator:" in plugin(harness, "describe", "share", "alone").stdout
        finally:
            harness.system("scale", "deployment/gpushare-operator", "--replicas=1")
            harness.wait_component("operator")
        wait_until("no problem any more", lambda: plugin(harness, "status").returncode == 0, 60)


def test_why_and_describe_name_what_holds_a_pod_back_and_where_that_stands(harness: Harness) -> None:
    with harness.share("tight", per_node=1, per_gpu=2), harness.namespace() as tenant:
        first, second = tenant.neighbours("tight", 2)
        held = wait_until("both slots are reported", lambda: _full(harness.held_by_gpu("tight"), 2), 30)
        runs = ask(harness, "why", first, "-n", tenant.name)
        assert (runs["stage"], runs["held"]) == ("running", False)
        (uuid,) = held
        assert f"GPU {uuid} of node {NODE}" in runs["sentence"]
        assert "25% of the SMs, 8Gi, 1 process of share tight" in runs["sentence"]

        tenant.start(tenant.pod("third", "tight", "depart"))
        waits = why(harness, tenant, "third", "all 2 are held")
        assert (waits["stage"], waits["source"]) == ("scheduler", "gpushare/tight")
        described = ask(harness, "describe", "share", "tight")
        assert described["pendingPods"] == [f"{tenant.name}/third"]
        (gpu,) = ask(harness, "describe", f"pod/{first}", "-n", tenant.name)["gpus"]
        assert (gpu["uuid"], gpu["neighbours"]) == (uuid, [f"{tenant.name}/{second}"])
        assert uuid in json.dumps(ask(harness, "describe", "node", NODE))

        unfit = tenant.pod("unfit", "tight", "depart", annotations={"gpushare.dev/threads": "70"})
        tenant.kubectl.create(deployment("unfit", unfit))
        refused = why(harness, tenant, "deployment/unfit", "is above the 50 percent")
        assert refused["stage"] == "admission"
        assert refused["source"].startswith("replicaset/unfit-")
        assert any(
            event["reason"] == "FailedCreate" and "is above the 50 percent" in event["message"]
            for event in ask(harness, "events", "-n", tenant.name)["events"]
        )
        tenant.kubectl.delete("deployment", "unfit")

        absent = tenant.pod("absent", "tight", "depart")
        absent["spec"]["containers"][0] |= {"image": NO_IMAGE, "resources": {}}
        tenant.start(absent)
        assert why(harness, tenant, "absent", NO_IMAGE)["stage"] == "start"


def test_a_viewer_of_one_namespace_is_told_what_is_hidden(harness: Harness) -> None:
    with harness.share("seen", per_node=1, per_gpu=2), harness.namespace() as tenant, harness.namespace() as other:
        tenant.kubectl("create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer")
        (own,), _ = tenant.neighbours("seen", 1), other.neighbours("seen", 1)
        viewer = ("--as=viewer", "-n", tenant.name)
        answer = wait_until("the GPU is in the status", lambda: _on_a_gpu(ask(harness, "top", *viewer)), 60)
        (client,) = answer["clients"]
        assert (client["pod"], client["share"], client["threadsGrantedPercent"]) == (own, "seen", 25)
        assert client["uuid"] in [assignment["uuid"] for assignment in harness.gpu_node()["spec"]["assignments"]]
        shown = plugin(harness, "top", *viewer)
        assert "get pods/proxy in namespace gpushare-system" in shown.stderr
        for command in (("why", own), ("describe", "pod", own), ("events",)):
            done = plugin(harness, *command, *viewer)
            assert done.returncode == 0, done.stderr
            assert own in done.stdout
            assert other.name not in done.stdout + done.stderr
        refused = plugin(harness, "top", "--as=viewer", "-n", other.name)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "Forbidden" in refused.stderr


def _on_a_gpu(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, once each client in it has a GPU."""
    return answer if answer["clients"] and all(client["uuid"] for client in answer["clients"]) else {}


def test_what_does_not_exist_is_an_error_with_a_suggestion(harness: Harness) -> None:
    for arguments, words in (
        (("describe", "node", "nod1"), f'node "nod1" not found; did you mean "{NODE}"?'),
        (("check", "nod1"), f'node "nod1" not found; did you mean "{NODE}"?'),
        (("top", "-n", "kube-sytem"), 'namespace "kube-sytem" not found; did you mean "kube-system"?'),
        (("why", "nothing", "-n", "default"), 'in namespace default: pod "nothing" not found'),
        (("top", "-A", "--share", "none"), 'GpuShare "none" not found'),
        (("status", "--context", "none"), 'context "none" does not exist'),
    ):
        done = plugin(harness, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert words in done.stderr


def test_check_names_the_cause_of_a_part_that_does_not_run(harness: Harness) -> None:
    live = harness.system.get("deployment", "gpushare-operator")
    container = live["spec"]["template"]["spec"]["containers"][0]["name"]
    harness.system("set", "image", "deployment/gpushare-operator", f"{container}={NO_IMAGE}")
    try:

        def named() -> dict[str, Any] | None:
            checks = json.loads(plugin(harness, "check", "-o", "json").stdout)["checks"]
            own = next(check for check in checks if check["what"] == "operator")
            return own if NO_IMAGE in own["message"] else None

        own = wait_until("check names the image", named, 60)
        assert own is not None
        assert own["level"] in ("warn", "FAIL")
        assert "ImagePull" in own["message"]
        assert "push the image" in own["hint"]
    finally:
        harness.system("rollout", "undo", "deployment/gpushare-operator")
        harness.system("rollout", "status", "deployment/gpushare-operator", "--timeout=90s", seconds=100)
        harness.wait_component("operator")


def test_kubectl_finds_the_plugin_and_its_completion(harness: Harness) -> None:
    environment = {**os.environ, **harness.stack.environment}

    def kubectl(*arguments: str) -> list[str]:
        done = subprocess.run(["kubectl", *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    assert kubectl("__complete", "gpushare", "descr")[:1] == ["describe"]
    assert kubectl("__complete", "gpushare", "describe", "node", "")[:1] == [NODE]
    assert f"gpunode.gpushare.dev/{NODE}" in kubectl("gpushare", "status", "-o", "name")
