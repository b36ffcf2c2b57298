"""Pods: what is added to a container that asks for a slot, and the sentence that refuses what cannot be granted."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.webhook.containers import pre_stop_seconds
from gpushare.webhook.pods import admit_pod, check_pod, delete_pod
from gpushare.webhook.review import AdmissionData, Admitted, Denied, Reason

ENVIRONMENT = {
    "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps",
    "CUDA_MPS_LOG_DIRECTORY": "/var/log/gpushare-mps",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
    "CUDA_MPS_CLIENT_PRIORITY": "0",
    "GPUSHARE_SHARE": "inference",
    "GPUSHARE_THREADS": "25",
    "GPUSHARE_MEMORY_BYTES": "8589934592",
    "GPUSHARE_PROCESSES": "1",
    "GPUSHARE_MEMORY_FRACTION": "0.0572",
}
EARLIER_LOG = {"name": "gpushare-mps-log", "mountPath": "/var/log/gpushare-mps"}
"""What earlier releases added to a container."""
SLOT = {"gpushare.dev/inference": "1"}


def share(name: str = "inference", deleting: bool = False, gpu_mib: int = 143155, **spec: Any) -> GpuShare:
    clients = {
        "perGpu": 8,
        "threads": {"default": 25, "max": 50},
        "memory": spec.pop("memory", {"default": "8Gi", "max": "8Gi"}),
        **spec.pop("clients", {}),
    }
    metadata = {"name": name, "deletionTimestamp": "2026-11-21T00:00:00Z" if deleting else None}
    status = {"gpuMemoryMib": gpu_mib}
    return GpuShare.model_validate({"metadata": metadata, "spec": {"clients": clients, **spec}, "status": status})


def data(*shares: GpuShare, namespace: str = "shop", labels: dict[str, str] | None = None) -> AdmissionData:
    known = {item.name: item for item in shares or (share(),)}
    return AdmissionData(
        namespace, labels or {}, known, list(known), "gpushare-system", tolerated=("nvidia.com/gpu", "sku")
    )


def container(limits: dict[str, Any] | None = SLOT, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"name": "app", "image": "app"}
    if limits is not None:
        body["resources"] = {"limits": dict(limits), "requests": dict(limits)}
    return {**body, **fields}


def pod(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"containers": list(containers or [container()]), "terminationGracePeriodSeconds": 30}
    return {"metadata": {"name": "client", "annotations": annotations}, "spec": {**body, **spec}}


def admitted(body: dict[str, Any], state: AdmissionData | None = None) -> dict[str, Any]:
    """The pod after our patch."""
    answer = admit_pod(body, state or data())
    assert isinstance(answer, Admitted), answer
    patched: dict[str, Any] = jsonpatch.apply_patch(
        copy.deepcopy(body), [change.operation() for change in answer.changes]
    )
    return patched


def refused(body: dict[str, Any], state: AdmissionData | None = None) -> list[str]:
    answer = admit_pod(body, state or data())
    assert isinstance(answer, Denied), answer
    return list(answer.problems)


def environment(body: dict[str, Any], index: int = 0) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in body["spec"]["containers"][index]["env"]}


# What is added


def test_a_container_with_a_slot_gets_grant_and_hook() -> None:
    patched = admitted(pod())
    client = patched["spec"]["containers"][0]
    assert environment(patched) == ENVIRONMENT
    assert client["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}
    assert patched["metadata"] == pod()["metadata"]


def test_a_pod_is_told_its_class() -> None:
    classes = share(clients={"classes": {"default": "BestEffort"}})
    for annotations, told in (
        (None, ("BestEffort", "50")),
        ({"gpushare.dev/threads-beside-protected": "20"}, ("BestEffort", "20")),
        ({"gpushare.dev/class": "Protected"}, ("Protected", None)),
    ):
        variables = environment(admitted(pod(annotations=annotations), data(classes)))
        assert (variables.get("GPUSHARE_CLASS"), variables.get("GPUSHARE_THREADS_BESIDE_PROTECTED")) == told


def test_a_pod_that_may_not_have_its_class_is_refused() -> None:
    closed = share(clients={"classes": {"protected": {"namespaces": ["serving"]}}})
    (problem,) = refused(pod(annotations={"gpushare.dev/class": "Protected"}), data(closed))
    assert '"Protected" is not for namespace "shop"' in problem
    (problem,) = refused(pod(annotations={"gpushare.dev/class": "Protected"}))
    assert 'needs classes, which GpuShare "inference" has not' in problem


def test_no_volume_is_added_for_which_a_drain_would_stop() -> None:
    patched = admitted(pod())
    assert "volumes" not in patched["spec"]
    assert "volumeMounts" not in patched["spec"]["containers"][0]


def test_annotations_lower_the_grant() -> None:
    patched = admitted(pod(annotations={"gpushare.dev/threads": "30", "gpushare.dev/memory": "1.5Gi"}))
    assert environment(patched)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert environment(patched)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1536M"


def test_our_variables_come_before_the_tenants() -> None:
    mine = {"name": "ARGS", "value": "--fraction $(GPUSHARE_MEMORY_FRACTION)"}
    patched = admitted(pod(container(env=[mine])))
    assert patched["spec"]["containers"][0]["env"][-1] == mine
    assert [variable["name"] for variable in patched["spec"]["containers"][0]["env"][:-1]] == list(ENVIRONMENT)


def test_what_a_tenant_wrote_stays() -> None:
    hook = {"exec": {"command": ["stop"]}}
    mount = {"name": "data", "mountPath": "/data"}
    volume = {"name": "data", "emptyDir": {}}
    patched = admitted(pod(container(volumeMounts=[mount], lifecycle={"preStop": hook}), volumes=[volume]))
    assert patched["spec"]["containers"][0]["volumeMounts"] == [mount]
    assert patched["spec"]["containers"][0]["lifecycle"] == {"preStop": hook}
    assert patched["spec"]["volumes"] == [volume]


def test_a_post_start_hook_is_kept_beside_our_pre_stop() -> None:
    hook = {"exec": {"command": ["warm"]}}
    patched = admitted(pod(container(lifecycle={"postStart": hook})))
    assert patched["spec"]["containers"][0]["lifecycle"] == {"postStart": hook, "preStop": {"sleep": {"seconds": 2}}}


def test_null_lists_are_like_missing_ones() -> None:
    nothing = container(env=None, volumeMounts=None, lifecycle=None)
    patched = admitted(pod(nothing, volumes=None, initContainers=None, tolerations=None))
    assert environment(patched) == ENVIRONMENT


def test_containers_without_a_slot_are_never_touched() -> None:
    other = container({"cpu": "1"}, name="side", env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mine"}])
    patched = admitted(pod(other, container(), initContainers=[container(None, name="setup")]))
    assert patched["spec"]["containers"][0] == other
    assert patched["spec"]["initContainers"] == [container(None, name="setup")]


def test_a_sidecar_may_hold_a_slot() -> None:
    patched = admitted(pod(container(None), initContainers=[container(restartPolicy="Always")]))
    assert patched["spec"]["initContainers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 2}}}
    assert patched["spec"]["containers"][0] == container(None)


def test_containers_of_one_pod_may_hold_a_slot_each_of_different_shares() -> None:
    both = data(share(), share("batch", memory={"default": "1Gi"}))
    patched = admitted(pod(container(), container({"gpushare.dev/batch": "1"}, name="b")), both)
    assert [environment(patched, index)["GPUSHARE_SHARE"] for index in (0, 1)] == ["inference", "batch"]


@pytest.mark.parametrize("mount", [{"mountPath": "/tmp"}, {"mountPath": "/tmp/mine", "readOnly": True}, EARLIER_LOG])
def test_a_mount_that_leaves_ours_a_place_is_admitted(mount: dict[str, Any]) -> None:
    mine = [{"name": "x", **mount}]
    patched = admitted(pod(container(volumeMounts=mine), volumes=[{"name": "x", "emptyDir": {}}]))
    assert patched["spec"]["containers"][0]["volumeMounts"] == mine


# Taints


def toleration(**fields: str) -> dict[str, str]:
    return {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule", **fields}


SKU = toleration(key="sku")


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param(None, [toleration(), SKU], id="none of its own"),
        pytest.param([toleration()], [toleration(), SKU], id="one of the two"),
        pytest.param([{"operator": "Exists"}], [{"operator": "Exists"}], id="it tolerates all taints"),
        pytest.param(
            [toleration(operator="Equal"), SKU], [toleration(operator="Equal"), SKU, toleration()], id="one value alone"
        ),
        pytest.param(
            [toleration(effect="NoExecute"), SKU], [toleration(effect="NoExecute"), SKU, toleration()], id="another"
        ),
    ],
)
def test_a_pod_of_a_share_tolerates_the_taints_of_gpu_nodes(present: Any, expected: list[dict[str, str]]) -> None:
    patched = admitted(pod(tolerations=present))
    assert patched["spec"]["tolerations"] == expected
    assert check_pod(patched, data()) == Admitted()


def test_no_other_pod_tolerates_them() -> None:
    other = pod(container({"cpu": "1"}))
    assert admitted(other) == other


def test_who_takes_the_toleration_away_again_is_not_refused() -> None:
    patched = admitted(pod())
    del patched["spec"]["tolerations"]
    assert check_pod(patched, data()) == Admitted()


# Several containers


def two(**annotations: str) -> dict[str, Any]:
    both = [container(), container({"gpushare.dev/batch": "1"}, name="side")]
    return pod(*both, annotations={key.replace("_", "/"): value for key, value in annotations.items()})


def shares_of_both() -> AdmissionData:
    return data(share(), share("batch", memory={"default": "2Gi", "max": "2Gi"}))


def test_a_container_may_ask_for_itself_alone() -> None:
    patched = admitted(
        two(**{"gpushare.dev/memory": "1Gi", "memory.gpushare.dev/app": "4Gi", "threads.gpushare.dev/side": "10"}),
        shares_of_both(),
    )
    app, side = environment(patched), environment(patched, 1)
    assert (app["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], app["GPUSHARE_THREADS"]) == ("0=4096M", "25")
    assert (side["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], side["GPUSHARE_THREADS"]) == ("0=1024M", "10")


def test_a_value_that_one_share_refuses_can_be_for_one_container() -> None:
    (problem,) = refused(two(**{"gpushare.dev/memory": "4Gi"}), shares_of_both())
    assert problem.startswith('metadata.annotations[gpushare.dev/memory]: "4Gi" is above the 2Gi')
    assert problem.endswith("; for one container alone write it as memory.gpushare.dev/<container>")


def test_a_refused_value_of_one_container_names_its_annotation() -> None:
    (problem,) = refused(two(**{"memory.gpushare.dev/side": "4Gi"}), shares_of_both())
    assert problem.startswith('metadata.annotations[memory.gpushare.dev/side]: "4Gi" is above the 2Gi')
    assert "for one container alone" not in problem


# Copies of admitted pods


def changed_default() -> AdmissionData:
    return data(share(memory={"default": "6Gi", "max": "6Gi"}))


def test_a_copy_of_an_admitted_pod_gets_the_grant_of_today() -> None:
    mine = {"name": "ARGS", "value": "--fraction $(GPUSHARE_MEMORY_FRACTION)"}
    copied = admitted(pod(container(env=[mine])))
    again = admitted(copied, changed_default())
    assert environment(again) == environment(admitted(pod(), changed_default())) | {"ARGS": mine["value"]}
    assert again["spec"]["containers"][0]["env"][-1] == mine
    assert check_pod(again, changed_default()) == Admitted()


def test_a_copy_loses_what_its_share_lends_no_more() -> None:
    lending = data(share(memory={"default": "8Gi", "limits": {"max": "40Gi", "default": "16Gi"}}))
    copied = admitted(pod(), lending)
    assert "GPUSHARE_MEMORY_LIMIT_BYTES" in environment(copied)
    assert environment(admitted(copied)) == ENVIRONMENT


def test_a_copy_is_asked_for_its_annotations_again() -> None:
    copied = admitted(pod(annotations={"gpushare.dev/memory": "8Gi"}))
    (problem,) = refused(copied, changed_default())
    assert problem.startswith('metadata.annotations[gpushare.dev/memory]: "8Gi" is above the 6Gi')


def test_a_copy_that_did_not_pass_the_first_webhook_is_refused() -> None:
    answer = check_pod(admitted(pod()), changed_default())
    assert isinstance(answer, Denied)
    assert answer.reasons == {Reason.CHANGED_AFTERWARDS}


def test_the_fraction_is_left_out_until_a_gpu_is_known() -> None:
    assert "GPUSHARE_MEMORY_FRACTION" not in environment(admitted(pod(), data(share(gpu_mib=0))))


@pytest.mark.parametrize(("grace", "seconds"), [(30, 2), (4, 2), (3, 1), (2, 1), (1, None), (0, None)])
def test_the_pre_stop_sleep_stays_within_the_grace_period(grace: int, seconds: int | None) -> None:
    assert pre_stop_seconds(grace) == seconds
    lifecycle = admitted(pod(terminationGracePeriodSeconds=grace))["spec"]["containers"][0].get("lifecycle")
    assert lifecycle == (None if seconds is None else {"preStop": {"sleep": {"seconds": seconds}}})


PROGRAM = {"exec": {"command": ["/run/gpushare/pre-stop", "2"]}}
SLEEP = {"sleep": {"seconds": 2}}
PROBE = {"httpGet": {"port": 80}}


def mounting(name: str = "inference", mounted: bool = True) -> GpuShare:
    """A share all of whose nodes mount the program, or not."""
    known = share(name)
    return known.model_copy(update={"status": known.status.model_copy(update={"pre_stop": mounted})})


@pytest.mark.parametrize(
    ("fields", "shares", "expected"),
    [
        pytest.param({"livenessProbe": PROBE}, [mounting()], PROGRAM, id="a liveness probe may end it without end"),
        pytest.param({"startupProbe": PROBE}, [mounting()], PROGRAM, id="so may a startup probe"),
        pytest.param({"lifecycle": {"postStart": PROBE}}, [mounting()], PROGRAM, id="and a postStart hook"),
        pytest.param({"readinessProbe": PROBE}, [mounting()], SLEEP, id="a readiness probe ends nothing"),
        pytest.param({}, [mounting()], SLEEP, id="a sleep needs no process in the container"),
        pytest.param({"livenessProbe": PROBE}, [mounting(mounted=False)], SLEEP, id="some node does not mount it"),
        pytest.param(
            {"livenessProbe": PROBE}, [mounting(), mounting("b", mounted=False)], SLEEP, id="of any share of the pod"
        ),
    ],
)
def test_the_hook_is_the_program_where_a_sleep_tells_less(
    fields: dict[str, Any], shares: list[GpuShare], expected: dict[str, Any]
) -> None:
    others = [container({f"gpushare.dev/{other.name}": "1"}, name=other.name) for other in shares[1:]]
    patched = admitted(pod(container(**fields), *others), data(*shares))
    assert patched["spec"]["containers"][0]["lifecycle"]["preStop"] == expected


@pytest.mark.parametrize(("grace", "seconds"), [(4, "2"), (2, "1")])
def test_the_program_takes_no_longer_than_the_sleep(grace: int, seconds: str) -> None:
    patched = admitted(pod(container(livenessProbe=PROBE), terminationGracePeriodSeconds=grace), data(mounting()))
    assert patched["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1] == seconds


def test_a_pod_without_slots_is_left_alone() -> None:
    assert admit_pod(pod(container({"cpu": "1"})), data()) == Admitted()


@pytest.mark.parametrize("resource", ["gpushare.dev/inference", "gpushare.dev/unknown", "internal.gpushare.dev/mps"])
def test_a_quantity_of_zero_asks_for_nothing(resource: str) -> None:
    assert admit_pod(pod(container({resource: "0"})), data()) == Admitted()
    assert environment(admitted(pod(container({**SLOT, resource: "0", "nvidia.com/gpu": 0} | SLOT)))) == ENVIRONMENT


def test_a_mirror_of_a_static_pod_is_left_alone() -> None:
    mirror = pod(container({"gpushare.dev/unknown": "7"}), annotations={"kubernetes.io/config.mirror": "hash"})
    assert admit_pod(mirror, data()) == Admitted()


def test_our_own_daemons_ask_for_the_internal_resource() -> None:
    daemon = pod(container({"internal.gpushare.dev/mps": "1"}))
    assert admit_pod(daemon, data(namespace="gpushare-system")) == Admitted()


# What is refused

LIMITS = "spec.containers[0].resources.limits"
ENV = "spec.containers[0].env"
OURS = "gpushare sets this variable from the grant; remove it"
PATHS = "gpushare mounts /run/gpushare/mps itself; use another path"
MOUNT = "spec.containers[0].volumeMounts[0].mountPath"
WARM_UP = (
    "do its work in the container that serves, before its program"
    ' (command: ["sh", "-c", "warm-up && exec program"]), and ask for it there alone'
)

REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    (
        "an unknown share, with what was probably meant",
        pod(container({"gpushare.dev/inferense": "1"})),
        f'{LIMITS}[gpushare.dev/inferense]: no GpuShare "inferense"; did you mean "inference"?',
    ),
    (
        "an unknown share that resembles none",
        pod(container({"gpushare.dev/zzz": "1"})),
        f'{LIMITS}[gpushare.dev/zzz]: no GpuShare "zzz"; `kubectl get gpushares` lists all',
    ),
    (
        "a second slot",
        pod(container({"gpushare.dev/inference": "2"})),
        f'{LIMITS}[gpushare.dev/inference]: "2" slots: a container takes exactly one; write 1, or use more containers',
    ),
    (
        "a request without a limit",
        pod(container(None, resources={"requests": SLOT})),
        f"{LIMITS}[gpushare.dev/inference]: is missing: Kubernetes counts extended resources by their limits;"
        " write the limit 1",
    ),
    (
        "an init container's slot",
        pod(container(None), initContainers=[container()]),
        "spec.initContainers[0].resources.limits[gpushare.dev/inference]: an init container that ends cannot hold a"
        " slot: Kubernetes lets it have no preStop hook, and would hand the same slot to another container;"
        f" {WARM_UP}",
    ),
    (
        "an NVIDIA GPU beside the slot",
        pod(container({**SLOT, "nvidia.com/gpu": "1"})),
        f"{LIMITS}[nvidia.com/gpu]: a whole NVIDIA GPU beside a slot would bypass its limits; keep one of the two",
    ),
    (
        "a MIG device beside the slot",
        pod(container({**SLOT, "nvidia.com/mig-1g.10gb": "1"})),
        f"{LIMITS}[nvidia.com/mig-1g.10gb]: a whole NVIDIA GPU beside a slot would bypass its limits;"
        " keep one of the two",
    ),
    (
        "what only our daemons may ask for",
        pod(container({"internal.gpushare.dev/mps": "1"})),
        f"{LIMITS}[internal.gpushare.dev/mps]: is for gpushare's own daemons in namespace"
        ' "gpushare-system" alone; ask for gpushare.dev/<share> in its place',
    ),
    (
        "threads above the ceiling",
        pod(annotations={"gpushare.dev/threads": "80"}),
        'metadata.annotations[gpushare.dev/threads]: "80" is above the 50 percent that GpuShare "inference" allows'
        " (spec.clients.threads.max); write a whole number from 1 to 50",
    ),
    (
        "a tenant's own control directory",
        pod(container(env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/mps"}])),
        f'{ENV}[CUDA_MPS_PIPE_DIRECTORY]: "/tmp/mps": {OURS}',
    ),
    (
        "a tenant's own limit from a ConfigMap",
        pod(container(env=[{"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "valueFrom": {"configMapKeyRef": {}}}])),
        f"{ENV}[CUDA_MPS_PINNED_DEVICE_MEM_LIMIT]: valueFrom: {OURS}",
    ),
    (
        "a variable of MPS that we do not set",
        pod(container(env=[{"name": "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "value": "1"}])),
        f'{ENV}[CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING]: "1": {OURS}',
    ),
    (
        "a variable in our name",
        pod(container(env=[{"name": "GPUSHARE_DEBUG", "value": None}])),
        f'{ENV}[GPUSHARE_DEBUG]: "": {OURS}',
    ),
    (
        "a made-up fraction",
        pod(container(env=[{"name": "GPUSHARE_MEMORY_FRACTION", "value": "0.9000"}])),
        f'{ENV}[GPUSHARE_MEMORY_FRACTION]: "0.9000": {OURS}',
    ),
    (
        "a mount over the control directory",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/run/gpushare/mps"}])),
        f'spec.containers[0].volumeMounts[0].mountPath: "/run/gpushare/mps": {PATHS}',
    ),
    (
        "a mount over the control socket by another way",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/run//x/../gpushare/mps/control"}])),
        f'spec.containers[0].volumeMounts[0].mountPath: "/run//x/../gpushare/mps/control": {PATHS}',
    ),
    (
        "a mount over the control directory by the link that images have",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/var/run/gpushare/mps"}])),
        f'spec.containers[0].volumeMounts[0].mountPath: "/var/run/gpushare/mps": {PATHS}',
    ),
    (
        "an earlier release's log volume by a sub-path",
        pod(container(volumeMounts=[{**EARLIER_LOG, "subPath": "a"}])),
        f'{MOUNT}: "/var/log/gpushare-mps": gpushare mounts /var/log/gpushare-mps itself; use another path',
    ),
    (
        "a mount where CUDA looks for MPS by default",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/tmp/nvidia-mps"}])),
        f'{MOUNT}: "/tmp/nvidia-mps": gpushare mounts /tmp/nvidia-mps itself; use another path',
    ),
    (
        "a read-only mount in which ours has no place",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/tmp", "readOnly": True}])),
        f'{MOUNT}: "/tmp": is a read-only volume, so gpushare\'s /tmp/nvidia-mps has no place below it and the'
        " container could not start; mount it elsewhere or writable",
    ),
    (
        "a ConfigMap there, which the kubelet mounts read-only",
        pod(container(volumeMounts=[{"name": "x", "mountPath": "/var/log"}]), volumes=[{"name": "x", "configMap": {}}]),
        f'{MOUNT}: "/var/log": is a read-only volume, so gpushare\'s /var/log/gpushare-mps has no place below it and'
        " the container could not start; mount it elsewhere or writable",
    ),
    (
        "a claim of a volume there that is read-only",
        pod(
            container(volumeMounts=[{"name": "x", "mountPath": "/run/"}]),
            volumes=[{"name": "x", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}],
        ),
        f'{MOUNT}: "/run/": is a read-only volume, so gpushare\'s /run/gpushare/mps has no place below it and the'
        " container could not start; mount it elsewhere or writable",
    ),
    (
        "a block device in our place",
        pod(container(volumeDevices=[{"name": "x", "devicePath": "/run/gpushare/mps/control"}])),
        f'spec.containers[0].volumeDevices[0].devicePath: "/run/gpushare/mps/control": {PATHS}',
    ),
]


@pytest.mark.parametrize(("body", "sentence"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_refused_is(body: dict[str, Any], sentence: str) -> None:
    assert refused(body) == [sentence]


def test_a_share_that_is_being_deleted_takes_no_new_pods() -> None:
    assert refused(pod(), data(share(deleting=True))) == [
        f'{LIMITS}[gpushare.dev/inference]: GpuShare "inference" is being deleted and takes no new pods;'
        " use another share"
    ]


def test_a_slot_of_a_share_delivered_by_claims_is_what_it_is_of_any_other() -> None:
    assert admitted(pod(), data(share(delivery="ResourceClaim"))) == admitted(pod())


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [("threads", "26", '26" is above the 25 percent'), ("memory", "9Gi", '9Gi" is above the 8Gi')],
)
def test_of_a_share_delivered_by_claims_a_slot_can_only_be_lowered(name: str, value: str, bound: str) -> None:
    by_claims = data(share(delivery="ResourceClaim", memory={"default": "8Gi", "max": "16Gi"}))
    (problem,) = refused(pod(annotations={f"gpushare.dev/{name}": value}), by_claims)
    assert bound in problem
    assert 'by a ResourceClaim of DeviceClass "inference.gpushare.dev"' in problem
    admitted(pod(annotations={"gpushare.dev/threads": "10", "gpushare.dev/memory": "1Gi"}), by_claims)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("inference.gpushare.dev", "write gpushare.dev/inference"),
        ("small.inference.gpushare.dev", 'use the ResourceClaimTemplate "small.inference" in spec.resourceClaims'),
    ],
)
def test_a_class_is_not_asked_for_by_its_implicit_name(name: str, advice: str) -> None:
    (problem,) = refused(pod(container({f"deviceclass.resource.kubernetes.io/{name}": "1"})))
    assert problem.endswith(advice)
    others = pod(container({"deviceclass.resource.kubernetes.io/gpu.example.com": "1"}))
    assert admitted(others) == others


def test_a_namespace_must_be_allowed() -> None:
    selector = {
        "matchLabels": {"team": "ml"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "zone", "operator": "NotIn", "values": ["c"]},
            {"key": "paid", "operator": "Exists"},
            {"key": "legacy", "operator": "DoesNotExist"},
        ],
    }
    limited = share(allowedNamespaces=selector)
    assert refused(pod(), data(limited)) == [
        f'{LIMITS}[gpushare.dev/inference]: namespace "shop" may not use GpuShare "inference": its labels do not match'
        " team=ml,tier in (a,b),zone notin (c),paid,!legacy (spec.allowedNamespaces); label the namespace or use"
        " another share"
    ]
    admitted(pod(), data(limited, labels={"team": "ml", "tier": "a", "paid": "yes"}))


def test_two_shares_in_one_container_are_refused() -> None:
    both = {"gpushare.dev/inference": "1", "gpushare.dev/batch": "1"}
    assert refused(pod(container(both)), data(share(), share("batch"))) == [
        f"{LIMITS}: gpushare.dev/batch, gpushare.dev/inference: a container reaches one GPU of one share;"
        " keep one of them"
    ]


def test_all_problems_of_a_pod_are_reported_at_once_and_each_once() -> None:
    bad = container({**SLOT, "nvidia.com/gpu": "1"}, env=[{"name": "CUDA_MPS_LOG_DIRECTORY", "value": "/x"}])
    annotations = {"gpushare.dev/threads": "12.5", "gpushare.dev/memory": "16GB"}
    answer = admit_pod(pod(bad, container(name="b"), annotations=annotations), data())
    assert isinstance(answer, Denied)
    assert [problem.split(": ")[0] for problem in answer.problems] == [
        f"{LIMITS}[nvidia.com/gpu]",
        "metadata.annotations[gpushare.dev/threads]",
        "metadata.annotations[gpushare.dev/memory]",
        f"{ENV}[CUDA_MPS_LOG_DIRECTORY]",
    ]
    assert answer.message().startswith("4 problems:\n- spec.containers[0]")
    assert answer.reasons == {Reason.SLOT, Reason.ANNOTATION, Reason.ENVIRONMENT}


def test_a_refusal_is_bounded() -> None:
    message = Denied(tuple(f"problem {number}" for number in range(500)), frozenset()).message()
    assert message.startswith("more than 20 problems:\n- problem 0\n")
    assert message.endswith("- problem 19\n- and more")


def test_a_refused_value_is_bounded() -> None:
    long = pod(container(env=[{"name": "GPUSHARE_X", "value": "v" * 10_000}]))
    assert len(refused(long)[0]) < 200


# Once more, later, and again


def test_an_admitted_pod_passes_the_check() -> None:
    assert check_pod(admitted(pod()), data()) == Admitted()


def test_a_pod_that_lost_its_limit_on_the_way_is_refused() -> None:
    tampered = admitted(pod())
    tampered["spec"]["containers"][0]["env"] = [
        variable
        for variable in tampered["spec"]["containers"][0]["env"]
        if variable["name"] != "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    ]
    answer = check_pod(tampered, data())
    assert isinstance(answer, Denied)
    assert answer.problems == (
        f"{ENV}[CUDA_MPS_PINNED_DEVICE_MEM_LIMIT]: is missing: the pod was changed after gpushare's mutating webhook,"
        " or never passed it; look for an admission webhook that takes it out, then create the pod again",
    )


def test_a_pod_whose_limit_was_raised_on_the_way_is_refused() -> None:
    tampered = admitted(pod())
    for variable in tampered["spec"]["containers"][0]["env"]:
        if variable["name"] == "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE":
            variable["value"] = "100"
    assert check_pod(tampered, data()) == Denied(
        (f'{ENV}[CUDA_MPS_ACTIVE_THREAD_PERCENTAGE]: "100": {OURS}',), frozenset([Reason.ENVIRONMENT])
    )


def test_a_second_value_behind_ours_is_refused() -> None:
    tampered = admitted(pod())
    tampered["spec"]["containers"][0]["env"].append({"name": "GPUSHARE_THREADS", "value": "100"})
    sentence = f'{ENV}[GPUSHARE_THREADS]: "100": {OURS}'
    assert check_pod(tampered, data()) == Denied((sentence,), frozenset([Reason.ENVIRONMENT]))


def test_a_larger_gpu_between_two_reviews_is_no_reason_to_refuse() -> None:
    assert check_pod(admitted(pod()), data(share(gpu_mib=183359))) == Admitted()


@pytest.mark.parametrize(("first", "then"), [(0, 143155), (143155, 0)], ids=["known since", "known to the first alone"])
def test_the_shares_gpus_may_become_known_between_two_reviews(first: int, then: int) -> None:
    patched = admitted(pod(), data(share(gpu_mib=first)))
    assert check_pod(patched, data(share(gpu_mib=then))) == Admitted()


@pytest.mark.parametrize("fraction", ["0.9000", "7"])
def test_a_copy_whose_fraction_was_raised_has_its_own_again(fraction: str) -> None:
    raised = admitted(pod())
    for variable in raised["spec"]["containers"][0]["env"]:
        if variable["name"] == "GPUSHARE_MEMORY_FRACTION":
            variable["value"] = fraction
    assert environment(admitted(raised)) == ENVIRONMENT


def test_what_was_taken_away_is_added_again() -> None:
    tampered = admitted(pod(container(env=[{"name": "A", "value": "1"}])))
    del tampered["spec"]["containers"][0]["env"][3]
    restored = admitted(tampered)
    assert environment(restored) == {**ENVIRONMENT, "A": "1"}


RESOURCES = st.dictionaries(
    st.sampled_from(["gpushare.dev/inference", "gpushare.dev/x", "cpu", "nvidia.com/gpu", "internal.gpushare.dev/mps"]),
    st.sampled_from(["1", "2", "0", 1, "500m"]),
    max_size=2,
)
VARIABLES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": st.sampled_from(["A", "GPUSHARE_THREADS", "CUDA_MPS_LOG_DIRECTORY", "GPUSHARE_MEMORY_FRACTION"])},
    optional={"value": st.none() | st.sampled_from(["25", "0.5", "/x"]), "valueFrom": st.none() | st.just({"a": {}})},
)
MOUNTS = st.fixed_dictionaries(
    {"name": st.sampled_from(["gpushare-mps-log", "data"])},
    optional={"mountPath": st.sampled_from(["/data", "/var/log/gpushare-mps", "/run", "/run/gpushare/mps/x", ""])},
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["", "nvidia.com/gpu", "other"]),
        "operator": st.sampled_from(["Exists", "Equal"]),
        "effect": st.sampled_from(["", "NoSchedule", "NoExecute"]),
    },
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.none()
        | st.fixed_dictionaries({}, optional={"limits": st.none() | RESOURCES, "requests": st.none() | RESOURCES}),
        "env": st.none() | st.lists(VARIABLES, max_size=3),
        "volumeMounts": st.none() | st.lists(MOUNTS, max_size=2),
        "lifecycle": st.none() | st.sampled_from([{}, {"preStop": None}, {"postStart": {"exec": {}}}]),
        "restartPolicy": st.none() | st.just("Always"),
    },
)
PODS = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINERS, min_size=1, max_size=3)},
            optional={
                "initContainers": st.none() | st.lists(CONTAINERS, max_size=2),
                "volumes": st.none() | st.sampled_from([[], [{"name": "data"}], [{"name": "data", "secret": {}}]]),
                "tolerations": st.none() | st.lists(TOLERATIONS, max_size=2),
                "terminationGracePeriodSeconds": st.none() | st.integers(0, 60),
            },
        )
    },
    optional={
        "metadata": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "annotations": st.none()
                | st.dictionaries(
                    st.sampled_from(["gpushare.dev/threads", "gpushare.dev/memory", "a"]),
                    st.sampled_from(["10", "1Gi", "abc"]),
                )
            },
        )
    },
)


@given(PODS)
def test_a_second_review_of_any_pod_adds_nothing(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    answer = admit_pod(body, data())
    assert body == before
    if isinstance(answer, Denied):
        assert answer.problems
        return
    patched = admitted(body)
    assert admit_pod(patched, data()) == Admitted(warnings=answer.warnings)
    assert check_pod(patched, data()) == Admitted(warnings=answer.warnings)
    for kind in ("containers", "initContainers"):
        for old, new in zip(body["spec"].get(kind) or [], patched["spec"].get(kind) or [], strict=True):
            slots = [name for name in ((old.get("resources") or {}).get("limits") or {}) if name.startswith("gpushare")]
            assert slots or new == old


OUR_CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "inference.gpushare.dev"}}]}}
ANOTHERS_CLAIM = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
CLAIMING = pod(container(None), nodeName="n1", resourceClaims=[{"name": "part"}])


@pytest.mark.parametrize(
    ("deleted", "claims", "silence", "warned"),
    [
        pytest.param(pod(nodeName="n1"), {}, "silent", True, id="slot"),
        pytest.param(CLAIMING, {"part": OUR_CLAIM}, "silent", True, id="claim"),
        pytest.param(CLAIMING, {"part": ANOTHERS_CLAIM}, "silent", False, id="another driver's claim"),
        pytest.param(pod(nodeName="n1"), {}, "", False, id="an agent that reports"),
        pytest.param(pod(container(None), nodeName="n1"), {}, "silent", False, id="no part of a GPU"),
        pytest.param({**pod(nodeName="n1"), "status": {"phase": "Failed"}}, {}, "silent", False, id="ended"),
    ],
)
def test_who_deletes_a_client_where_no_agent_reports_is_warned(
    deleted: dict[str, Any], claims: dict[str, Any], silence: str, warned: bool
) -> None:
    answer = delete_pod(deleted, claims, silence)
    assert answer.changes == ()
    assert [("no gpushare agent reports on node n1" in text, len(text) <= 256) for text in answer.warnings] == (
        [(True, True)] if warned else []
    )
