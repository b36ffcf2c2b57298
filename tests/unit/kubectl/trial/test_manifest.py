"""The Job of a case is the user's pod, as often as the case has copies, each with a slot, and otherwise unchanged."""

from typing import Any

import pytest
import yaml

from gpushare.kubectl.trial.manifest import (
    LABEL,
    LARGEST_MANIFEST,
    ManifestError,
    container_of,
    job_of,
    obstacles,
    read_template,
)

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "app", "uid": "1", "annotations": {"gpushare.dev/threads": "20"}, "labels": {"app": "x"}},
    "spec": {
        "nodeName": "node1",
        "restartPolicy": "Always",
        "containers": [
            {
                "name": "app",
                "image": "registry/app:1",
                "command": ["serve"],
                "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "4Gi"}, "requests": {"cpu": "1"}},
            }
        ],
    },
    "status": {"phase": "Running"},
}
JOB = {"kind": "Job", "metadata": {"name": "app"}, "spec": {"template": {k: POD[k] for k in ("metadata", "spec")}}}


def text(*objects: Any) -> str:
    return yaml.safe_dump_all(objects)


def test_labels_that_the_api_server_gave_to_another_job_stay_behind() -> None:
    given = {"job-name": "app", "controller-uid": "1", "batch.kubernetes.io/job-name": "app", "app": "x"}
    template = read_template(text(POD | {"metadata": {"labels": given}}))
    assert template["metadata"]["labels"] == {"app": "x"}


@pytest.mark.parametrize("manifest", [POD, JOB], ids=["a Pod", "a Job"])
def test_a_pod_runs_as_often_as_the_case_says_with_a_slot(manifest: dict[str, Any]) -> None:
    job = job_of(read_template(text({"kind": "Service"}, manifest)), "inference", "ab12", 4, 3, 700)
    assert job["metadata"] == {"name": "gpushare-trial-ab12-3", "labels": {LABEL: "ab12"}}
    spec = job["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (4, 4, 0)
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (700, 600)
    template = spec["template"]
    assert template["metadata"] == {
        "annotations": {"gpushare.dev/threads": "20"},
        "labels": {"app": "x", LABEL: "ab12"},
    }
    assert template["spec"]["restartPolicy"] == "Never"
    assert "nodeName" not in template["spec"]
    (container,) = template["spec"]["containers"]
    assert container == {
        "name": "app",
        "image": "registry/app:1",
        "command": ["serve"],
        "resources": {"limits": {"gpushare.dev/inference": 1, "memory": "4Gi"}, "requests": {"cpu": "1"}},
    }


def test_another_shares_slot_gives_way_and_a_sidecar_gets_none() -> None:
    gpu = {"name": "gpu", "resources": {"limits": {"gpushare.dev/other": 1}}}
    template = {"metadata": {}, "spec": {"containers": [{"name": "side"}, gpu]}}
    assert container_of(template) == "gpu"
    side, main = job_of(template, "inference", "ab12", 4, 1, 10)["spec"]["template"]["spec"]["containers"]
    assert main["resources"]["limits"] == {"gpushare.dev/inference": 1}
    assert side["resources"]["limits"] == {}


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("a: [", "the file is no YAML"),
        (text({"kind": "Deployment"}), "the file has 0 Jobs and Pods among 1 document"),
        (text(POD, JOB), "the file has 2 Jobs and Pods"),
        (text({"kind": "Job", "spec": {}}), "the Job has no pod spec"),
        (text({"kind": "Pod", "spec": {"containers": []}}), "the Pod has no containers"),
        ("#" * (LARGEST_MANIFEST + 1), "more than 1048576 characters"),
    ],
)
def test_a_file_that_a_trial_cannot_run_is_refused(manifest: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        read_template(manifest)


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([{"name": "a"}, {"name": "b"}], "0 of 2 containers ask for a GPU"),
        ([{"name": "a"}, {}], "a container without a name"),
        (
            [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
            "a asks for nvidia.com/gpu: 2, and a copy gets",
        ),
    ],
)
def test_a_pod_whose_gpu_container_is_not_plain_is_refused(containers: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        container_of({"metadata": {}, "spec": {"containers": containers}})


def share(gpus: int = 1, used: int = 0, per_gpu: int = 8, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "inference"},
        "spec": {"clients": {"perGpu": per_gpu}, **spec},
        "status": {"gpus": {"ready": gpus}, "slots": {"used": used}},
    }


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (share(), []),
        (share(gpus=0), ["has 0 ready GPUs"]),
        (share(gpus=2, used=3), ["has 2 ready GPUs", "3 slots of GpuShare inference are held"]),
        (share(per_gpu=1), ["has 1 slot on a GPU (spec.clients.perGpu): the trial needs 2 beside each other"]),
        (share(delivery="ResourceClaim"), ["delivered by ResourceClaims"]),
        ({"metadata": {"name": "new"}, "spec": {"clients": {"perGpu": 4}}}, ["has 0 ready GPUs"]),
    ],
)
def test_copies_that_would_not_be_beside_each_other_alone_are_refused(share: dict[str, Any], words: list[str]) -> None:
    reasons = obstacles(share, 2)
    assert len(reasons) == len(words)
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))
