"""The GpuShare and the pods that follow from what was measured. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from gpushare.api import names
from gpushare.api.client_class import ClientClass
from gpushare.api.quantity import LEAST_MEMORY_MIB
from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare.kubectl.rules.trial.protect import JobWay
from gpushare.kubectl.rules.trial.rows import TrialRow
from gpushare.kubectl.rules.trial.verdict import TrialVerdict

HEADROOM = 1.1
"""The recommended memory, as a multiple of the highest that was seen."""
MEMORY_STEP_MIB = 256
LEAST_UNCAPPED_MIB = 768
"""Granted to a client with all threads, whose CUDA context takes 520 MiB: admission refuses less than that."""
RESERVE_MIB = 1024
"""Part of the GPU's memory that is left for MPS itself."""
THREADS = names.ANNOTATION_THREADS
WHOLE_GPU = "nvidia.com/gpu"
IMAGE = "registry.example.com/YOUR_IMAGE"
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
_UNPRINTABLE = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
"""What JSON may have in a string, and YAML may not."""
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def memory_for(most_mib: int) -> int:
    """MiB to grant a client that was seen with `most_mib` at most: a tenth more, in whole steps."""
    steps = -(-int(most_mib * HEADROOM) // MEMORY_STEP_MIB)
    return max(LEAST_MEMORY_MIB, steps * MEMORY_STEP_MIB)


def check_share_name(option: str, name: str) -> None:
    """Raises ValueError naming the option for a name that no GpuShare can have."""
    if not re.match(names.SHARE_NAME_PATTERN, name):
        raise ValueError(
            f"{option} {name!r}: a GpuShare's name begins with a letter and has at most 40 of a-z, 0-9 and -"
        )


def share_of(
    verdict: TrialVerdict,
    rows: Sequence[TrialRow],
    name: str,
    product: str,
    gpu_mib: int | None,
    cap: float | None = None,
) -> dict[str, Any] | None:
    """The GpuShare to apply; None where the verdict recommends none, or the memory of the copies is not known.

    Each client gets the most memory that a copy was seen with and a little more, as far as the GPU has it. `cap`:
    percent of the SMs of each copy in mode CAPPED, if the GPU was not divided equally.
    """
    best = verdict.best
    if best is None or best.memory_mib is None or gpu_mib is None:
        return None
    usable = gpu_mib - RESERVE_MIB
    alone = [row.memory_mib for row in rows if row.case.mode is TrialMode.ALONE and row.memory_mib is not None]
    wanted = memory_for(max(best.memory_mib, *alone, 0))
    capped = best.case.mode is TrialMode.CAPPED
    least = LEAST_MEMORY_MIB if capped else LEAST_UNCAPPED_MIB
    memory = max(least, min(wanted, usable // best.case.total))
    clients = min(best.case.total, usable // memory)
    if clients < 1:
        return None
    threads = max(1, int(cap or 100 / best.case.total)) if capped else 100
    return _share(name, product, clients, {"default": threads, "max": threads}, memory)


def share_beside(
    way: JobWay, rows: Sequence[TrialRow], name: str, product: str, gpu_mib: int | None
) -> dict[str, Any] | None:
    """The GpuShare for a service and a job that runs so beside it; None: the memory of one of them is not known. Who
    has no annotation, and no class, has the job's cap.
    """
    alone = [row.memory_mib for row in rows if row.case.total == 1]
    known = [memory for memory in alone if memory is not None]
    if gpu_mib is None or not known or len(known) < len(alone):
        return None
    memory = max(LEAST_UNCAPPED_MIB, min(memory_for(max(known)), (gpu_mib - RESERVE_MIB) // 2))
    threads = {"default": 100 if way.best_effort else way.percent, "max": 100}
    return with_class(_share(name, product, 2, threads, memory), way, "")


def _share(name: str, product: str, per_gpu: int, threads: Mapping[str, int], memory_mib: int) -> dict[str, Any]:
    clients = {"perGpu": per_gpu, "threads": threads, "memory": {"default": f"{memory_mib}Mi"}}
    spec = {"gpus": {"products": [product]}, "clients": clients}
    return {"apiVersion": names.API_VERSION, "kind": "GpuShare", "metadata": {"name": name}, "spec": spec}


def with_class(share: Mapping[str, Any], way: JobWay, namespace: str) -> dict[str, Any]:
    """The share with what this way needs. `namespace`: whose pods may be Protected; empty: of every namespace."""
    changed = deepcopy(dict(share))
    if way.best_effort:
        classes = changed["spec"]["clients"].setdefault("classes", {})
        classes.setdefault("bestEffort", {})["threadsBesideProtected"] = way.percent
        protected = classes.setdefault("protected", {})
        protected.setdefault("perGpu", 1)
        if namespace and not protected.get("namespaces"):
            protected["namespaces"] = [namespace]
    return changed


def annotations_of(
    way: JobWay | None, service: bool, classes: bool, alone: ClientClass = ClientClass.NORMAL
) -> dict[str, str]:
    """Of the pod of the service, or of the job, that runs so. `way` None: it runs alone, in class `alone`. `classes`:
    the share has them, so that every pod names its own.
    """
    if way is None:
        return {names.ANNOTATION_CLASS: alone.value} if classes else {}
    if way.best_effort and service:
        return {names.ANNOTATION_CLASS: ClientClass.PROTECTED.value}
    if way.best_effort:
        return {
            names.ANNOTATION_CLASS: ClientClass.BEST_EFFORT.value,
            names.ANNOTATION_BESIDE_PROTECTED: str(way.percent),
        }
    threads = {} if service else {THREADS: str(way.percent)}
    return threads | ({names.ANNOTATION_CLASS: ClientClass.NORMAL.value} if classes else {})


def annotated(template: Mapping[str, Any], container: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The pod template with these annotations in the place of its own of the same kind, and of its class."""
    changed = deepcopy(dict(template))
    replaced = {names.ANNOTATION_CLASS, names.ANNOTATION_BESIDE_PROTECTED, *annotations}
    replaced |= {names.container_annotation(name, container) for name in annotations}
    metadata = changed.setdefault("metadata", {})
    kept = {key: value for key, value in (metadata.get("annotations") or {}).items() if key not in replaced}
    metadata["annotations"] = kept | dict(annotations)
    return changed


def with_slot(template: Mapping[str, Any], container: str, share: str) -> dict[str, Any]:
    """The pod template whose container has one slot of the share in the place of what names a GPU."""
    changed = deepcopy(dict(template))
    for each in changed["spec"]["containers"]:
        resources = each.get("resources") or {}
        limits, requests = (
            {key: value for key, value in (resources.get(part) or {}).items() if not is_gpu(key)}
            for part in ("limits", "requests")
        )
        if each["name"] == container:
            limits[names.slot_resource(share)] = 1
        each["resources"] = {**resources, "limits": limits, "requests": requests}
    return changed


def is_gpu(resource: str) -> bool:
    return resource == WHOLE_GPU or names.share_of_resource(resource) is not None


def pod_of(
    name: str, template: Mapping[str, Any], container: str, share: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """The pod to apply."""
    slotted = with_slot(annotated(template, container, annotations), container, share)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **slotted["metadata"]},
        "spec": slotted["spec"],
    }


def template_of(name: str, command: Sequence[str]) -> dict[str, Any]:
    """The pod template of a command, whose image its user puts in."""
    container = {
        "name": name,
        "image": IMAGE,
        "command": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"metadata": {}, "spec": {"securityContext": security, "containers": [container]}}


def as_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Documents that `kubectl apply -f -` takes. What is not plainly a word stands in quotes."""
    return "\n---\n".join("\n".join(yaml_lines(item)) for item in objects)


def yaml_lines(value: Mapping[str, Any], indent: int = 0) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        begin = " " * indent + f"{_scalar(key)}:"
        if isinstance(item, Mapping) and item:
            lines += [begin, *yaml_lines(item, indent + 2)]
        elif isinstance(item, list) and item and all(isinstance(each, Mapping) and each for each in item):
            lines.append(begin)
            for each in item:
                first, *rest = yaml_lines(each, indent + 4)
                lines += [" " * (indent + 2) + "- " + first[indent + 4 :], *rest]
        else:
            lines.append(f"{begin} {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]+[A-Z][a-z]", value):
        return value  # a quantity, such as 8Gi
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
