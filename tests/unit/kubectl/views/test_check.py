"""`kubectl gpushare check`: each obstacle is found and reported with what to do about it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.views.check import Facts, check
from gpushare.kubectl.views.metrics_access import MetricsAccess
from gpushare.kubectl.views.status import node_problems
from tests.unit.kubectl.cluster_objects import GPU, SILENT, event, gpu_node, share, shown

NO_MPS = {
    **SILENT,
    "type": "DriverFilesReachable",
    "status": "False",
    "reason": "DriverFilesMissing",
    "message": "no nvidia-cuda-mps-server below the driver root /",
}


def pod(part: str, ready: bool = True, **state: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    labels = {"app.kubernetes.io/component": part}
    return {
        "metadata": {"name": f"{part}-1", "namespace": "gpushare-system", "uid": "u", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": part, "image": "gpushare/operator:0.1.0"}]},
        "status": {"conditions": [condition], "containerStatuses": [{"name": part, "ready": ready} | state]},
    }


def node(runtime: str = "containerd://2.1.0", **status: Any) -> dict[str, Any]:
    state = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"containerRuntimeVersion": runtime}}
    return {"metadata": {"name": "n1"}, "status": state | status}


def starting() -> dict[str, Any]:
    effects = {"dedicated": "PreferNoSchedule", "gpushare.dev/agent-not-ready": "NoSchedule"}
    taints = [{"key": key, "effect": effect} for key, effect in effects.items()]
    return {**node(), "spec": {"taints": taints}}


SOUND = Facts(
    version="v1.37.0",
    webhook='Forbidden: admission webhook refused: spec.gpus.products[0]: " " is blank',
    policies=("gpushare-agent", "other"),
    enforced="privileged",
    pods=(pod("operator"), pod("webhook"), pod("agent")),
    nodes=(node(),),
    gpu_nodes={"n1": gpu_node("GPU-0")},
)


def problems(facts: Facts, only: str | None = None) -> list[tuple[str, str]]:
    report = check(facts, only)
    told = [(check["level"], check["message"]) for check in report.data["checks"] if check["level"] != "ok"]
    assert report.code == any(level == "FAIL" for level, _ in told)
    return told


def test_a_sound_cluster_passes_every_check() -> None:
    assert problems(SOUND) == []
    assert "1 GPU, driver 580.1, 48 MPS clients on each" in shown(check(SOUND, "n1"))


@pytest.mark.parametrize(("protocol", "told"), [("", False), ("V2", False), ("V3", True)])
def test_a_node_whose_daemons_speak_what_is_unproven_says_so(protocol: str, told: bool) -> None:
    daemon = {"uuid": "GPU-0", "share": "inference", "protocol": protocol}
    facts = replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", daemons=[daemon])})
    assert ("MPS daemons speak v3, which is untested on hardware" in shown(check(facts, "n1"))) is told


def test_a_share_whose_clients_may_starve_each_other_gets_a_warning() -> None:
    clients = {"perGpu": 8, "memory": {"default": "8Gi"}}
    listed = (share("capped"), share("open", clients=clients), share("classed", clients=clients | {"classes": {}}))
    shares = tuple(item.model_dump(mode="json", by_alias=True) for item in listed)
    ((level, message),) = problems(replace(SOUND, shares=shares))
    assert (level, message.split(",")[0]) == ("warn", "each of 8 clients of a GPU may have all its SMs")


def test_a_pod_being_deleted_is_no_problem_and_no_substitute() -> None:
    leaving = [pod(part, False) for part in ("mps", "operator")]
    for replica in leaving:
        replica["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert problems(replace(SOUND, pods=(*SOUND.pods, *leaving))) == []
    assert problems(replace(SOUND, pods=(*SOUND.pods, pod("mps", False)))) == [("FAIL", "0 of 1 pod ready")]
    ((level, message),) = problems(without("operator", leaving[1]))
    assert (level, message.partition(":")[0]) == ("FAIL", "0 of 0 pods ready")


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (replace(SOUND, version="v1.31.4"), "FAIL", "1.32 or newer"),
        (replace(SOUND, pods=(pod("operator"), pod("webhook"), pod("webhook", False), pod("agent"))), "warn", "1 of 2"),
        (replace(SOUND, pods=(pod("operator"), pod("webhook", False), pod("agent"))), "FAIL", "0 of 1 pod ready"),
        (replace(SOUND, webhook=None), "warn", "does not call the webhook"),
        (replace(SOUND, webhook="InternalError: failed calling webhook: no endpoints"), "FAIL", "does not reach"),
        (replace(SOUND, webhook="Forbidden: you cannot create gpushares"), "warn", "could not be checked"),
        (replace(SOUND, policies=()), "warn", "RBAC alone limits"),
        (replace(SOUND, policies=None), "warn", "may not list"),
        (replace(SOUND, enforced="baseline"), "FAIL", '"baseline"'),
        (replace(SOUND, nodes=(node("containerd://1.7.1"),)), "FAIL", "1.7.2 or newer"),
        (replace(SOUND, nodes=(node(conditions=[]),)), "FAIL", "is not Ready"),
        (replace(SOUND, nodes=(node() | {"spec": {"unschedulable": True}},)), "warn", "is cordoned: no pod is placed"),
        (replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", conditions=[SILENT])}), "FAIL", "AgentSilent: no heartbeat"),
        (
            replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", conditions=[NO_MPS])}),
            "FAIL",
            "DriverFilesMissing: no nvidia-cuda-mps-server",
        ),
        (replace(SOUND, nodes=(node(allocatable={"nvidia.com/gpu": "8"}),)), "warn", "deploy.device-plugin=false"),
        (replace(SOUND, nodes=(starting(),)), "warn", "agent-not-ready: it goes once"),
        (
            replace(SOUND, nodes=(starting(),), gpu_nodes={"n1": gpu_node("GPU-0", observedGeneration=0)}),
            "warn",
            "agent-not-ready: its agent has not read yet",
        ),
        (
            replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=[GPU | {"uuid": "GPU-0", "migEnabled": True}])}),
            "warn",
            "MIG",
        ),
        (
            replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=[GPU | {"uuid": "GPU-0", "lost": True}])}),
            "FAIL",
            "is lost",
        ),
        (
            replace(
                SOUND,
                gpu_nodes={
                    "n1": gpu_node(
                        "GPU-0", gpus=[GPU | {"uuid": "GPU-0", "computeMode": "Prohibited"}], computeModePolicy="Leave"
                    )
                },
            ),
            "warn",
            "Prohibited",
        ),
    ],
)
def test_each_obstacle_is_found_and_reported(facts: Facts, level: str, words: str) -> None:
    ((severity, message),) = problems(facts)
    assert severity == level
    assert words in message


def test_an_administrators_compute_mode_is_no_obstacle() -> None:
    exclusive = [GPU | {"uuid": "GPU-0", "computeMode": "ExclusiveProcess"}]
    assert problems(replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=exclusive)}))[0][0] == "warn"
    assert (
        problems(replace(SOUND, gpu_nodes={"n1": gpu_node("GPU-0", gpus=exclusive, computeModePolicy="Leave")})) == []
    )


def test_a_node_that_is_asked_for_by_name_is_reported_even_without_gpus() -> None:
    assert problems(replace(SOUND, gpu_nodes={}), "n1")[0][1].startswith("no agent reports it")
    with pytest.raises(WrongInputError, match='node "n9" not found; did you mean "n1"'):
        check(SOUND, "n9")


PULL = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
CRASH = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": "no CRD"}},
}


def workload(kind: str, name: str, part: str, spec: Any = None, **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": part}
    own = spec or {"template": {"spec": {"nodeSelector": {"pool": "gpu"}}}}
    return {"kind": kind, "metadata": {"name": name, "labels": labels}, "spec": own, "status": status}


def without(part: str, *instead: dict[str, Any], **facts: Any) -> Facts:
    kept = [pod for pod in SOUND.pods if pod["metadata"]["labels"]["app.kubernetes.io/component"] != part]
    return replace(SOUND, pods=(*kept, *instead), **facts)


@pytest.mark.parametrize(
    ("facts", "cause", "hint"),
    [
        (without("operator", pod("operator", False, **PULL)), "ImagePullBackOff gpushare/operator:0.1.0", "push"),
        (
            without("operator", pod("operator", False, **CRASH)),
            "CrashLoopBackOff: container operator ended with exit code 2: no CRD (pod operator-1 on n1)",
            "kubectl logs -n gpushare-system operator-1 -c operator --previous",
        ),
        (
            without("agent", pod("agent", False, state={"terminated": {"exitCode": 2, "message": "line\nhostPID\n"}})),
            "container agent ended with exit code 2: hostPID (pod agent-1 on n1)",
            "kubectl logs -n gpushare-system agent-1 -c agent",
        ),
        (
            without("webhook", pod("webhook", False, state={"running": {}})),
            "NotReady: container webhook runs, and its probe fails",
            "kubectl logs -n gpushare-system webhook-1 -c webhook",
        ),
        (without("operator"), "nothing of it is in namespace gpushare-system", "--system-namespace"),
        (
            without("agent", workloads=(workload("DaemonSet", "gpushare-agent", "agent", desiredNumberScheduled=0),)),
            "DaemonSet gpushare-agent fits no node, it wants pool=gpu",
            "label the nodes",
        ),
        (
            without(
                "operator",
                workloads=(workload("Deployment", "gpushare-operator", "operator", {"replicas": 0}),),
            ),
            "Deployment gpushare-operator is scaled to 0",
            "kubectl scale -n gpushare-system deployment/gpushare-operator --replicas=1",
        ),
        (
            without(
                "agent",
                workloads=(workload("DaemonSet", "gpushare-agent", "agent", desiredNumberScheduled=1),),
                failures=(event("FailedCreate", 'pods "x" is forbidden: quota', "DaemonSet/gpushare-agent"),),
            ),
            'no pod can be made: pods "x" is forbidden: quota',
            "leave namespace gpushare-system out",
        ),
    ],
)
def test_a_part_that_does_not_run_is_reported_with_cause_and_hint(facts: Facts, cause: str, hint: str) -> None:
    (told,) = [line for line in check(facts, None).data["checks"] if line["level"] != "ok"]
    assert told["level"] == "FAIL"
    assert cause in told["message"]
    assert hint in told["hint"]
    assert bool(told["hint"]) == bool(hint)


def test_a_refused_write_is_told_with_its_share() -> None:
    condition = {"type": "WritesAccepted", "status": "False", "reason": "WriteRefused", "message": "no; do this"}
    refused = {"metadata": {"name": "a"}, "status": {"conditions": [condition]}}
    assert problems(replace(SOUND, shares=(refused,))) == [("FAIL", "WriteRefused: no; do this")]
    accepted = {**refused, "status": {"conditions": [{**condition, "status": "True"}]}}
    assert problems(replace(SOUND, shares=(accepted, {"metadata": {"name": "b"}}))) == []


def test_a_webhook_without_its_certificate_says_what_refuses_it() -> None:
    refusal = event("WriteRefused", "the API server refuses x; raise that quota", "Secret/gpushare-webhook-tls")
    waiting = pod("webhook", False, state={"running": {}})
    told = problems(without("webhook", waiting, failures=(refusal,)))
    assert told == [("FAIL", "0 of 1 pod ready: WriteRefused: the API server refuses x; raise that quota")]
    assert problems(replace(SOUND, failures=(refusal,))) == [], "it was mended since"
    (none,) = problems(without("webhook", failures=(refusal,)))
    assert "be made" not in none[1]


TWICE = {"type": "GpusExclusive", "status": "False", "reason": "HeldByNvidiaPlugin", "message": "both; label it",
         "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (TWICE, "HeldByNvidiaPlugin: both; label it"),
        (TWICE | {"reason": "HeldByNvidiaDra"}, "HeldByNvidiaDra: both; label it"),
        (TWICE | {"reason": "ComputeModeLeft"}, ""),
        (TWICE | {"status": "True"}, ""),
        (TWICE | {"type": "WritesAccepted", "reason": "WriteRefused"}, "WriteRefused: both; label it"),
    ],
)
def test_what_is_to_be_mended_of_a_node_is_told_by_check_and_status(condition: dict[str, str], told: str) -> None:
    troubled = gpu_node("GPU-0", conditions=[condition])
    assert problems(replace(SOUND, gpu_nodes={"n1": troubled})) == ([("FAIL", told)] if told else [])
    assert [f"{reason}: {message}" for _, reason, message in node_problems(troubled)] == ([told] if told else [])


@pytest.mark.parametrize(
    ("part", "said", "hint"),
    [
        ("agent", "failed quota: small: must specify limits.cpu for: agent", "agent.resources.limits.cpu"),
        ("mps", "failed quota: small: must specify limits.cpu for: mps", "mps.resources.cpuLimit"),
        ("operator", "exceeded quota: small, requested: pods=1", "raise that ResourceQuota of namespace"),
        ("mps", 'admission webhook "x" denied the request: no', "leave namespace gpushare-system out"),
    ],
)
def test_what_refuses_a_parts_pods_is_told_with_the_value_to_set(part: str, said: str, hint: str) -> None:
    owner = workload("DaemonSet", f"gpushare-{part}", part, desiredNumberScheduled=2, currentNumberScheduled=1)
    failures = (event("FailedCreate", said) | {"involvedObject": {"name": f"gpushare-{part}"}},)
    rest = tuple(ready for ready in SOUND.pods if ready["metadata"]["name"] != f"{part}-1")
    facts = replace(SOUND, pods=(*rest, pod(part)), workloads=(owner,), failures=failures)
    (told,) = [line for line in check(facts, None).data["checks"] if line["level"] != "ok"]
    assert said in told["message"]
    assert hint in told["hint"]


@pytest.mark.parametrize("made", [0, 1])
def test_mps_pods_that_a_quota_refuses_are_told_beside_those_there_are(made: int) -> None:
    labels = {"app.kubernetes.io/component": "mps"}
    counts = {"desiredNumberScheduled": 2, "currentNumberScheduled": made}
    owner = {"kind": "DaemonSet", "metadata": {"name": "gpushare-mps-a-u", "labels": labels}, "status": counts}
    failure = event("FailedCreate", "exceeded quota: small") | {"involvedObject": {"name": "gpushare-mps-a-u"}}
    pods = (*SOUND.pods, *[pod("mps")] * made)
    facts = replace(SOUND, pods=pods, workloads=(owner,), failures=(failure,))
    told = ("1 of 2 pods of gpushare-mps-a-u cannot" if made else "no pod can") + " be made: exceeded quota: small"
    assert problems(facts) == [("FAIL", told)]


MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
PAGE = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "ui"}}}
API_SERVER = [{"endpoints": [{"addresses": ["192.0.2.7"]}, {"addresses": ["2001:db8::7"]}]}]
ADMITTED = [{"ipBlock": {"cidr": "192.0.2.7/32"}}, {"ipBlock": {"cidr": "2001:db8::7/128"}}]


def access(*rules: dict[str, Any], slices: Any = API_SERVER, problem: str = "i/o timeout") -> MetricsAccess:
    health = {"ports": [{"port": 8082}]}
    policy = {"spec": {"ingress": [health, *({"ports": [{"port": 9408}], **rule} for rule in rules)]}}
    return MetricsAccess("n1", problem, policy, slices)


def test_metrics_that_the_api_server_reaches_are_in_order() -> None:
    assert problems(replace(SOUND, metrics=MetricsAccess("n1"), metrics_port=9408)) == []


def test_an_api_server_that_a_policy_keeps_out_is_told_what_to_set() -> None:
    facts = replace(SOUND, metrics=access({"from": [MONITORING]}, {"from": [PAGE]}), metrics_port=9408)
    [said] = [line for line in check(facts, None).data["checks"] if line["what"] == "metrics"]
    assert (said["level"], "i/o timeout" in said["message"]) == ("warn", True)
    value = said["hint"].split("'metrics.from=")[1].split("'")[0]
    assert json.loads(value) == [MONITORING, *ADMITTED]


@pytest.mark.parametrize(
    "seen",
    [
        MetricsAccess("n1", "refused"),
        access(),
        access({}),
        access({"from": [MONITORING]}, slices=()),
        access({"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]}),
    ],
    ids=["no policy", "no rule", "open to all", "no addresses", "admitted"],
)
def test_a_policy_that_is_not_the_cause_is_not_blamed(seen: MetricsAccess) -> None:
    assert seen.missing(9408) == ""


def tainted(*taints: dict[str, str]) -> Facts:
    webhook = {
        "kind": "Deployment",
        "metadata": {"name": "gpushare-webhook", "labels": {"app.kubernetes.io/component": "webhook"}},
        "spec": {"template": {"spec": {"containers": [{"args": ["webhook", "--tolerate-taint=nvidia.com/gpu"]}]}}},
    }
    return replace(SOUND, nodes=({**node(), "spec": {"taints": list(taints)}},), workloads=(webhook,))


@pytest.mark.parametrize(
    ("taint", "named"),
    [
        ({"key": "sku", "value": "gpu", "effect": "NoSchedule"}, "sku=gpu:NoSchedule"),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, ""),
        ({"key": "nvidia.com/gpu", "effect": "NoExecute"}, "nvidia.com/gpu:NoExecute"),
        ({"key": "sku", "effect": "PreferNoSchedule"}, ""),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, ""),
    ],
)
def test_a_taint_that_keeps_pods_of_shares_off_is_named(taint: dict[str, str], named: str) -> None:
    message = f"has the taint {named}: pods of shares that do not tolerate it stay away"
    assert problems(tainted(taint)) == ([("warn", message)] if named else [])
