"""What is admitted, and still not what somebody meant, or dangerous to neighbours. Each warning says what follows.

Who applies an owner (a Deployment, a Job or whatever else makes pods from a template) hears at once what admission will
answer to its pods. Later only its controller hears that, and puts it into an event.

Guarantees: a pod as we changed it gets the same warnings as before; however much there is to say, MOST_WARNINGS are. An
owner is never refused and never changed.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.api.names import (
    ANNOTATION_BESIDE_PROTECTED,
    ANNOTATION_CLASS,
    GRANT_ANNOTATIONS,
    GROUP,
    container_annotation,
    share_of_resource,
)
from gpushare.kube.pods import grace_period_seconds
from gpushare.webhook.containers import Container, pre_stop_seconds
from gpushare.webhook.review import LONGEST_NAME, AdmissionData, Admitted, Answer, listed, mapped, quoted, shown

MOST_WARNINGS = 10
"""The API server cuts all warnings of a request short from 4096 characters on."""
_OF_CLASSES = (ANNOTATION_CLASS, ANNOTATION_BESIDE_PROTECTED)
_ANNOTATIONS = (*GRANT_ANNOTATIONS, *_OF_CLASSES)
_LEAST_LIKENESS = 0.5
"""Low, since there are two to choose from: `mem` means `memory`."""
_FIRST_DEVICE = "0"


def pod_warnings(pod: Mapping[str, Any], asking: Sequence[Container], data: AdmissionData) -> tuple[str, ...]:
    """The warnings of a pod that is not refused. `asking`: its containers that ask for a part of a GPU."""
    annotations = mapped(mapped(pod, "metadata"), "annotations")
    seconds = int(grace_period_seconds(pod))
    return tuple(islice(_warnings(annotations, seconds, asking, data), MOST_WARNINGS))


def _warnings(
    annotations: Mapping[str, Any], seconds: int, asking: Sequence[Container], data: AdmissionData
) -> Iterator[str]:
    yield from _annotation_warnings(annotations, asking)
    if not asking:
        return
    yield from _overcommit_warnings(asking, data)
    if pre_stop_seconds(seconds) is None:
        yield (
            f"spec.terminationGracePeriodSeconds: {quoted(seconds)} leaves no time to end the CUDA clients of this pod"
            " in order, and one that is killed in mid-kernel ends all clients of its GPU; write at least 4"
        )
    for container in asking:
        yield from _hook_warnings(container)
        yield from _device_warnings(container)


def _annotation_warnings(annotations: Mapping[str, Any], asking: Sequence[Container]) -> Iterator[str]:
    """Annotations of ours that nothing reads."""
    own = {
        container_annotation(annotation, str(container.body.get("name") or ""))
        for annotation in GRANT_ANNOTATIONS
        for container in asking
        if container.slots
    }
    for name in annotations:
        prefix, _, container_name = name.partition("/")
        if prefix != GROUP and not prefix.endswith(f".{GROUP}"):
            continue
        field = f"metadata.annotations[{shown(name)}]"
        if any(name == container_annotation(annotation, container_name) for annotation in GRANT_ANNOTATIONS):
            if name not in own:
                yield f"{field}: has no effect: no container {quoted(container_name)} asks for a slot"
        elif name not in _ANNOTATIONS:
            yield f"{field}: is not known and has no effect; {_meant(name)}"
        elif not asking:
            yield f"{field}: has no effect: no container asks for a slot (resources.limits, {GROUP}/<share>)"
        elif name not in _OF_CLASSES and not any(container.slots for container in asking):
            yield f"{field}: has no effect on claims: write it as the claim's capacity"


def _meant(name: str) -> str:
    short = {annotation.partition("/")[2]: annotation for annotation in _ANNOTATIONS}
    word = name.partition("/")[2].lower()
    near = difflib.get_close_matches(word, short, n=1, cutoff=_LEAST_LIKENESS) if len(word) <= LONGEST_NAME else []
    return f"did you mean {quoted(short[near[0]])}?" if near else f"a pod may have {', '.join(_ANNOTATIONS)}"


def _overcommit_warnings(asking: Sequence[Container], data: AdmissionData) -> Iterator[str]:
    names = {share_of_resource(resource) or "" for container in asking for resource in container.slots}
    for name in sorted(names):
        if _is_memory_overcommitted(data.shares[name]):
            yield f'GpuShare "{name}" over-commits GPU memory: an allocation within the grant may fail'


def _is_memory_overcommitted(share: GpuShare) -> bool:
    granted = share.clients.per_gpu * share.memory_default_mib
    return share.clients.memory.overcommit and granted > share.status.gpu_memory_mib > 0


def _hook_warnings(container: Container) -> Iterator[str]:
    hook = mapped(mapped(container.body, "lifecycle"), "preStop")
    if hook and not mapped(hook, "sleep").get("seconds"):  # a sleep of a second or more is as good as ours
        yield (
            f"{container.field}.lifecycle.preStop: takes the place of gpushare's sleep, in which CUDA clients are ended"
            " in order; one that is killed in mid-kernel ends all clients of its GPU: let the hook take at least a"
            " second"
        )


def _device_warnings(container: Container) -> Iterator[str]:
    for variable in listed(container.body, "env"):
        if variable.get("name") != "CUDA_VISIBLE_DEVICES" or variable.get("value") == _FIRST_DEVICE:
            continue
        value = "valueFrom" if variable.get("valueFrom") else quoted(variable.get("value") or "")
        yield (
            f"{container.field}.env[CUDA_VISIBLE_DEVICES]: {value}: the container has one GPU, which is device 0; if it"
            " names another one, CUDA finds none (error 100); remove it"
        )


def pod_of(owner: dict[str, Any]) -> dict[str, Any]:
    """The pod that the owner's template makes, without a name; of a CronJob, the one of its Jobs."""
    spec = mapped(owner, "spec")
    maker = mapped(mapped(spec, "jobTemplate"), "spec") or spec
    template = mapped(maker, "template")
    return {"metadata": mapped(template, "metadata"), "spec": mapped(template, "spec")}


def warn_owner(kind: str, answer: Answer) -> Admitted:
    """`kind`: of the owner. `answer`: to its pods."""
    if isinstance(answer, Admitted):
        return Admitted(warnings=answer.warnings)
    refused = f"pods of this {shown(kind)} will be refused"
    return Admitted(warnings=tuple(f"{refused}: {problem}" for problem in answer.problems[:MOST_WARNINGS]))
