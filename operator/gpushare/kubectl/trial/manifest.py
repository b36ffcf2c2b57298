"""The user's Job or Pod as a Job of a case: as many copies as the case has of it, each with a slot. Pure.

Guarantees: image, command, volumes, annotations and everything else of the user's pod stay as they are. What names a
whole GPU gives way to the slot, and what would start copies again is switched off.
"""

from typing import Any

import yaml

from gpushare.api import names
from gpushare.kubectl.rules.trial.apply import WHOLE_GPU, is_gpu, with_slot
from gpushare.kubectl.trial.pods import JOB_LABEL
from gpushare.messages.wording import are, count_of

Object = dict[str, Any]

LABEL = f"{names.GROUP}/trial"
"""The label of every object of a trial; its value is the trial's own."""
LARGEST_MANIFEST = 1024 * 1024
KEPT_SECONDS = 600
"""A Job that its trial could not delete is deleted by Kubernetes this long after its end."""
OF_THE_JOB = {JOB_LABEL, "batch.kubernetes.io/controller-uid", "job-name", "controller-uid"}
"""Labels that the API server writes for each Job, and refuses with another's value."""


class ManifestError(ValueError):
    """The file holds nothing that a trial can run. The text says what to change."""


def read_template(text: str) -> Object:
    """The pod template of the one Job or Pod in a YAML text, with `metadata` and `spec`. Raises ManifestError."""
    if len(text) > LARGEST_MANIFEST:
        raise ManifestError(f"the file has more than {LARGEST_MANIFEST} characters: give one with a Job or a Pod")
    try:
        documents = [item for item in yaml.safe_load_all(text) if item]
    except (yaml.YAMLError, RecursionError) as error:
        raise ManifestError(f"the file is no YAML: {error}") from None
    objects = [item for item in documents if isinstance(item, dict) and item.get("kind") in ("Job", "Pod")]
    if len(objects) != 1:
        raise ManifestError(
            f"the file has {len(objects)} Jobs and Pods among {count_of(len(documents), 'document')}: give one with "
            "exactly one"
        )
    item = objects[0]
    template = (item.get("spec") or {}).get("template") if item["kind"] == "Job" else item
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise ManifestError(f"the {item['kind']} has no pod spec: is it complete?")
    if not isinstance(template["spec"].get("containers"), list) or not template["spec"]["containers"]:
        raise ManifestError(f"the {item['kind']} has no containers")
    metadata = template.get("metadata") or {}
    kept = {key: metadata[key] for key in ("annotations", "labels") if metadata.get(key)}
    if isinstance(kept.get("labels"), dict):
        kept["labels"] = {key: value for key, value in kept["labels"].items() if key not in OF_THE_JOB}
    return {"metadata": kept, "spec": {key: value for key, value in template["spec"].items() if key != "nodeName"}}


def container_of(template: Object) -> str:
    """The name of the container that uses the GPU. Raises ManifestError where that is not plain."""
    containers = template["spec"]["containers"]
    if any(not isinstance(container, dict) or not container.get("name") for container in containers):
        raise ManifestError("a container without a name")
    for container in containers:
        limits = (container.get("resources") or {}).get("limits") or {}
        for resource in filter(is_gpu, limits):
            if str(limits[resource]) != "1":
                asked = f"container {container['name']} asks for {resource}: {limits[resource]}"
                raise ManifestError(f"{asked}, and a copy gets one slot: write 1")
    if len(containers) == 1:
        return str(containers[0]["name"])
    with_gpu = [str(container["name"]) for container in containers if any(map(is_gpu, _resources(container)))]
    if len(with_gpu) != 1:
        raise ManifestError(
            f"{len(with_gpu)} of {count_of(len(containers), 'container')} ask for a GPU: give one of them "
            f"{WHOLE_GPU}: 1 or a slot, so that the trial knows whose figures to read"
        )
    return with_gpu[0]


def asks_for_gpu(template: Object) -> bool:
    return any(is_gpu(resource) for container in template["spec"]["containers"] for resource in _resources(container))


def job_of(template: Object, share: str, trial: str, copies: int, number: int, seconds: int) -> Object:
    """Job `number` of the trial, which Kubernetes itself ends after `seconds`."""
    template = with_slot(template, container_of(template), share)
    spec = template["spec"]
    spec["restartPolicy"] = "Never"
    metadata = template["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL: trial}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(trial, number), "labels": {LABEL: trial}},
        "spec": {
            "parallelism": copies,
            "completions": copies,
            "backoffLimit": 0,
            "activeDeadlineSeconds": seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": template,
        },
    }


def job_name(trial: str, number: int) -> str:
    return f"gpushare-trial-{trial}-{number}"


def _resources(container: Object) -> list[str]:
    resources = container.get("resources") or {}
    return [*(resources.get("limits") or {}), *(resources.get("requests") or {})]


def obstacles(share: Object, copies: int) -> list[str]:
    """Why so many copies in slots of this share, of all programs together, would not be beside each other, or not
    alone: a sentence each.
    """
    spec, status = share.get("spec") or {}, share.get("status") or {}
    name = share["metadata"]["name"]
    sentences = []
    if spec.get("delivery") == "ResourceClaim":
        return [f"GpuShare {name} is delivered by ResourceClaims: a trial runs in slots (delivery: DevicePlugin)"]
    if spec.get("wholeGpus") is not None:
        return [f"GpuShare {name} gives whole GPUs: a trial runs in slots, of a share with spec.clients"]
    ready = (status.get("gpus") or {}).get("ready", 0)
    if ready != 1:
        sentences.append(
            f"GpuShare {name} has {count_of(ready, 'ready GPU')}: copies run beside each other for certain only where "
            "it has one (select one node, and set gpus.perNode: 1)"
        )
    if used := (status.get("slots") or {}).get("used", 0):
        sentences.append(
            f"{count_of(used, 'slot')} of GpuShare {name} {are(used)} held: figures would be those of a GPU that "
            "others use too"
        )
    slots = (spec.get("clients") or {}).get("perGpu", 0)
    if slots < copies:
        sentences.append(
            f"GpuShare {name} has {count_of(slots, 'slot')} on a GPU (spec.clients.perGpu): the trial needs {copies} "
            "beside each other"
        )
    return sentences
