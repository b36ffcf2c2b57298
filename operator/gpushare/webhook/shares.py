"""Validation of a GpuShare beyond its schema: memory that is too small for MPS, and names that can never match.

Bounds and relations that the schema states (512Mi, default and max, selector operators) are not repeated here.
Two shares that select the same GPUs are no error: the older one gets them, and the other's status says so.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from gpushare.api.conditions import ConditionType
from gpushare.api.gpushare import CONTEXT_RESERVE_MIB, GpuShare
from gpushare.api.meta import LabelSelector
from gpushare.api.quantity import MIB, format_mib, parse_memory
from gpushare.grant.model import context_need_mib, contexts_take
from gpushare.messages.wording import count_of
from gpushare.webhook.review import Admitted, Answer, Problems, Reason, listed, mapped, quoted, shown

_CEILING_BEFORE_590 = 48
_LARGEST_GPU_MIB = 288 * 1024
"""More than any GPU has today (Blackwell Ultra: 288 GB)."""
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def validate_share(new: dict[str, Any], old: dict[str, Any] | None) -> Answer:
    """Decides on a GpuShare that is created (`old` None) or updated.

    An update that leaves the spec unchanged always passes: it must be possible to remove a share's finalizer,
    whatever the rules of this version are.
    """
    if old is not None and (old.get("spec") == new.get("spec") or mapped(new, "metadata").get("deletionTimestamp")):
        return Admitted()
    problems = Problems()
    try:  # without metadata and status, which are not ours to judge
        share = GpuShare.model_validate({"metadata": {}, "spec": new.get("spec")})
    except ValidationError as error:
        problems.add(Reason.SHARE_SPEC, (_sentence(dict(problem)) for problem in error.errors(include_url=False)))
        return problems.denied()
    if not share.whole:
        problems.add(Reason.SHARE_SPEC, _memory_problems(share))
    problems.add(Reason.SHARE_SPEC, _product_problems(share))
    problems.add(Reason.SHARE_SPEC, _selector_problems("spec.nodeSelector", share.spec.node_selector))
    problems.add(Reason.SHARE_SPEC, _selector_problems("spec.allowedNamespaces", share.spec.allowed_namespaces))
    if problems:
        return problems.denied()
    status = mapped(new, "status")
    if share.whole:
        return Admitted()
    return Admitted(warnings=tuple(_warnings(share, status.get("gpuMemoryMib") or 0)))


def delete_share(share: dict[str, Any]) -> Admitted:
    """Never refuses. Warns where its GPUs cannot be released now."""
    condition = unguarded(share)
    if condition is None:
        return Admitted()
    message = condition.get("message") or ""
    return Admitted(warnings=(f"GPUs of silent nodes are released only once their agents are back: {message}",))


def unguarded(share: Mapping[str, Any]) -> dict[str, Any] | None:
    """The condition that says that agents of a GpuShare are silent; None where they report."""
    return next(
        (
            item
            for item in listed(mapped(share, "status"), "conditions")
            if item.get("type") == ConditionType.DEPARTURES_GUARDED and item.get("status") != "True"
        ),
        None,
    )


def _memory_problems(share: GpuShare) -> Iterator[str]:
    clients = share.clients
    readable = True
    values = {"spec.clients.memory.default": clients.memory.default}
    if clients.memory.max is not None:  # otherwise the default is also the ceiling
        values["spec.clients.memory.max"] = clients.memory.max
    if clients.memory.limits is not None:
        values["spec.clients.memory.limits.max"] = clients.memory.limits.max
        if clients.memory.limits.default is not None:
            values["spec.clients.memory.limits.default"] = clients.memory.limits.default
    values |= {f"spec.sizes[{index}].memory": size.memory for index, size in enumerate(share.spec.sizes)}
    limited = ((index, size.memory_limit) for index, size in enumerate(share.spec.sizes))
    values |= {f"spec.sizes[{index}].memoryLimit": limit for index, limit in limited if limit is not None}
    for field, value in values.items():
        try:
            parse_memory(value)
        except ValueError as error:
            readable = False
            yield f"{field}: {shown(str(error).replace(repr(value), quoted(value)), 512)}"
    if not readable:
        return
    contexts = contexts_take(clients.processes)
    need = context_need_mib(clients.threads.max) * clients.processes
    if parse_memory(clients.memory.default) < need * MIB:
        yield (
            f"spec.clients.memory.default: {quoted(clients.memory.default)} is below the {format_mib(need)} that"
            f" {contexts} at {clients.threads.max} percent of the threads (spec.clients.threads.max); write at least"
            f" {format_mib(need)}, or lower threads.max"
        )
    for index, size in enumerate(share.spec.sizes):
        need = context_need_mib(size.threads) * clients.processes
        if parse_memory(size.memory) < need * MIB:
            yield (
                f"spec.sizes[{index}].memory: {quoted(size.memory)} is below the {format_mib(need)} that {contexts} at"
                f" {size.threads} percent of the threads; write at least {format_mib(need)}, or lower its threads"
            )


def _product_problems(share: GpuShare) -> Iterator[str]:
    for index, product in enumerate(share.spec.gpus.products):
        if product != product.strip():
            yield (
                f"spec.gpus.products[{index}]: {quoted(product)} is blank or has blanks at its ends, so it matches no"
                " GPU; write the name as `nvidia-smi -L` does"
            )


def _selector_problems(field: str, selector: LabelSelector) -> Iterator[str]:
    for key, value in selector.match_labels.items():
        yield from _label_problems(f"{field}.matchLabels", key, [value])
    for index, requirement in enumerate(selector.match_expressions):
        where = f"{field}.matchExpressions[{index}]"
        yield from _label_problems(where, requirement.key, requirement.values)


def _label_problems(where: str, key: str, values: list[str]) -> Iterator[str]:
    if not _LABEL_KEY.fullmatch(key):
        yield f"{where}: {quoted(key)} is not a label key; write it like topology.kubernetes.io/zone"
    for value in values:
        if not _LABEL_VALUE.fullmatch(value):
            yield (
                f"{where}[{shown(key)}]: {quoted(value)} is not a label value; use letters, digits, '-', '_' and '.',"
                " with a letter or digit at both ends"
            )


def _warnings(share: GpuShare, own_mib: int) -> Iterator[str]:
    """`own_mib`: of the largest GPU that the share has, 0 where it has none."""
    memory, largest_mib = share.clients.memory, own_mib or _LARGEST_GPU_MIB
    clients = 1 if share.by_claims else share.clients.per_gpu
    if not memory.overcommit and clients * share.memory_default_mib + CONTEXT_RESERVE_MIB > largest_mib:
        product = "" if share.by_claims else f" for each of {count_of(clients, 'client')}"
        what = (
            "no GPU of this share fits any more: all leave it, no further pod gets a part of one, and clients that run"
            " go on until they end; lower it, lower perGpu, or set memory.overcommit"
        )
        yield (
            f"spec.clients.memory.default: {quoted(memory.default)}{product} is more than the"
            f" {format_mib(largest_mib)} of a GPU leave beside {CONTEXT_RESERVE_MIB}Mi of MPS itself;"
            f" {what if own_mib else 'GPUs that have less memory are not taken'}"
        )
    if share.memory_max_mib > share.memory_default_mib and not (memory.overcommit or share.by_claims):
        yield (
            f"spec.clients.memory.max: {quoted(memory.max)} has no effect without memory.overcommit:"
            " annotations may only lower memory"
        )
    yield from _limits_warnings(share, largest_mib)
    if share.may_starve:
        yield (
            f"spec.clients.threads.default: {quoted(share.clients.threads.default)} for each of"
            f" {count_of(share.clients.per_gpu, 'client')} of a GPU: one with large kernels can keep all others waiting"
            " for seconds; lower it, or let clients have classes (spec.clients.classes)"
        )
    if share.contexts_per_gpu > _CEILING_BEFORE_590:
        yield (
            f"spec.clients.perGpu: driver 590 or newer is needed for {count_of(share.contexts_per_gpu, 'context')} on "
            "a GPU; GPUs of older drivers are not taken"
        )


def _limits_warnings(share: GpuShare, largest_mib: int) -> Iterator[str]:
    limits = share.limits_memory
    if limits is None:
        return
    field = "spec.clients.memory.limits"
    if share.by_claims:
        if limits.overcommit_percent == 100:
            yield (
                f"{field}: has no effect with overcommitPercent 100: claims may reserve all of a GPU, so none of it is"
                " left to borrow; write more than 100"
            )
        return
    together = share.full_gpu_limits_mib
    if together > limits.overcommit_percent * largest_mib // 100:
        yield (
            f"{field}.max: {quoted(limits.max)} for each of {count_of(share.clients.per_gpu, 'client')} is more than"
            f" {limits.overcommit_percent} percent of the {format_mib(largest_mib)} of a GPU"
            f" ({field}.overcommitPercent); GPUs that have less memory are not taken"
        )


def _sentence(error: dict[str, Any]) -> str:
    field = ".".join(shown(part) for part in error["loc"])
    return f"{field}: {quoted(error.get('input'))}: {error['msg']}"
