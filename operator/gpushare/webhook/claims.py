"""Admission of ResourceClaims and ResourceClaimTemplates that name a DeviceClass of ours.

Guarantees: a claim that names none is never changed; what a tenant wrote is never replaced; an admitted claim asks for
one part of one GPU within its share's bounds, and one of a size's class for exactly that size. What cannot be seen
here, such as another driver's class that selects our devices, the node's agent checks before a container starts.

Quantities are read as Kubernetes reads them. A share's devices round requests up to whole percent and MiB, so a value
is rounded up before it is compared with a bound.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.api import names
from gpushare.api.gpushare import GpuShare, Size
from gpushare.api.quantity import LEAST_MEMORY_MIB, MIB, format_mib, parse_quantity
from gpushare.grant.model import context_need_mib, contexts_take
from gpushare.messages.wording import count_of
from gpushare.webhook.refusals import share_problems, suggestion
from gpushare.webhook.review import (
    AdmissionData,
    Admitted,
    Answer,
    Change,
    Denied,
    Problems,
    Reason,
    listed,
    mapped,
    quoted,
    shown,
)

_CAPACITIES = (
    names.CAPACITY_THREADS,
    names.CAPACITY_MEMORY,
    names.CAPACITY_MEMORY_BURST,
    names.CAPACITY_CLIENTS,
)


def shares_claimed(body: dict[str, Any]) -> set[str]:
    """Names of the shares whose classes a claim or template names."""
    return shares_of(claim_spec(body))


def shares_of(spec: Mapping[str, Any]) -> set[str]:
    """Names of the shares whose classes a claim's spec names."""
    return {share for _, choice in _choices(spec) for share, _ in [_class(choice)] if share}


def claim_spec(body: dict[str, Any]) -> dict[str, Any]:
    """The spec of a claim, or of those that a template makes."""
    spec = mapped(body, "spec")
    return mapped(spec, "spec") if "spec" in spec else spec


def classes_of(spec: Mapping[str, Any]) -> list[str]:
    """The DeviceClasses that a claim's spec names, alternatives included."""
    return [str(choice.get("deviceClassName") or "") for _, choice in _choices(spec)]


def admit_claim(body: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a claim or template that is being created."""
    if not shares_claimed(body):
        return Admitted()
    templated = "spec" in mapped(body, "spec")
    prefix = "spec.spec" if templated else "spec"
    annotations = mapped(mapped(body, "metadata"), "annotations")
    by_scheduler = not templated and annotations.get(names.ANNOTATION_SCHEDULERS_CLAIM) == "true"
    spec = claim_spec(body)
    problems = Problems()
    if not by_scheduler:
        problems.add(Reason.CLAIM, _number_problems(prefix, spec))
    problems.add(Reason.CLAIM, _config_problems(prefix, spec))
    changes: list[Change] = []
    for place, choice in _choices(spec):
        name, size = _class(choice)
        if not name or problems.full:
            continue
        field = f"{prefix}.devices.{place}"
        problems.add(Reason.CLAIM, _request_problems(field, choice))
        class_field = f"{field}.deviceClassName"
        refusals = list(_class_problems(class_field, name, size, data))
        if by_scheduler and size is not None:
            refusals.append(_not_by_name(class_field, name, size))
        problems.add(Reason.SHARE, refusals)
        share = data.shares.get(name)
        if share is None or refusals:
            continue
        problems.add(Reason.CAPACITY, _capacity_problems(field, choice, share, size))
        changes += _capacity_changes(f"/{prefix}/devices/{place}", field, choice, share, size)
    if problems:
        return problems.denied()
    return Admitted(tuple(changes))


def check_claim(body: dict[str, Any], data: AdmissionData) -> Answer:
    """Decides on a claim as it will be stored: the capacities of its size must be there."""
    answer = admit_claim(body, data)
    if isinstance(answer, Denied) or not answer.changes:
        return answer
    problems = Problems()
    problems.add(
        Reason.CHANGED_AFTERWARDS,
        (
            f"{change.field}: is missing: the claim was changed after gpushare's mutating webhook, or never passed it;"
            " look for an admission webhook that takes it out, then create the claim again"
            for change in answer.changes
        ),
    )
    return problems.denied()


def _choices(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path below `devices`, request) of each request and each of its alternatives."""
    for index, request in enumerate(listed(mapped(spec, "devices"), "requests")):
        if request.get("exactly"):
            yield f"requests[{index}].exactly", request["exactly"]
        for number, choice in enumerate(listed(request, "firstAvailable")):
            yield f"requests[{index}].firstAvailable[{number}]", choice


def _class(choice: dict[str, Any]) -> tuple[str, str | None]:
    return names.parse_device_class(str(choice.get("deviceClassName") or "")) or ("", None)


def _number_problems(prefix: str, spec: dict[str, Any]) -> Iterator[str]:
    requests = listed(mapped(spec, "devices"), "requests")
    if len(requests) > 1:
        yield (
            f"{prefix}.devices.requests: {count_of(len(requests), 'request')}: a claim of gpushare's classes has "
            "exactly one, since a client reaches one part of one GPU; write a claim for each container"
        )
    for index, request in enumerate(requests):
        if request.get("firstAvailable"):
            yield (
                f"{prefix}.devices.requests[{index}].firstAvailable: a list of alternatives cannot be granted; write"
                " one request under `exactly`"
            )


def _config_problems(prefix: str, spec: dict[str, Any]) -> Iterator[str]:
    for index, config in enumerate(listed(mapped(spec, "devices"), "config")):
        if mapped(config, "opaque").get("driver") == names.DRA_DRIVER:
            yield (
                f"{prefix}.devices.config[{index}].opaque.driver: {quoted(names.DRA_DRIVER)} takes no configuration;"
                " write what the client needs as capacity.requests"
            )


def _request_problems(field: str, choice: dict[str, Any]) -> Iterator[str]:
    mode, count = choice.get("allocationMode") or "ExactCount", choice.get("count")
    if mode != "ExactCount":
        yield f"{field}.allocationMode: {quoted(mode)}: a client reaches one GPU; write ExactCount"
    elif count not in (None, 1):
        yield f"{field}.count: {quoted(count)}: a client reaches one GPU; write 1, or a claim for each container"
    if choice.get("adminAccess"):
        yield f'{field}.adminAccess: "true": there is nothing to administer through a claim; remove it'
    for index, toleration in enumerate(listed(choice, "tolerations")):
        key = toleration.get("key") or ""
        if key == names.TAINT_NOT_READY or (not key and toleration.get("operator") == "Exists"):
            yield (
                f"{field}.tolerations[{index}]: {quoted(key or 'every key')}: a GPU with taint {names.TAINT_NOT_READY}"
                " takes no clients; remove the toleration"
            )


def _class_problems(field: str, name: str, size: str | None, data: AdmissionData) -> Iterator[str]:
    yield from share_problems(field, name, data)
    share = data.shares.get(name)
    if share is None:
        return
    if not share.by_claims:
        yield (
            f"{field}: GpuShare {quoted(name)} is delivered by DevicePlugin (spec.delivery); ask for the resource"
            f" {names.slot_resource(name)} in place of a claim"
        )
    elif size is not None and size not in (known := [size_model.name for size_model in share.spec.sizes]):
        yield f"{field}: GpuShare {quoted(name)} has no size {quoted(size)}{suggestion(size, known, 'sizes')}"


def _not_by_name(field: str, name: str, size: str) -> str:
    return (
        f"{field}: {quoted(names.size_class(name, size))} cannot be asked for as an extended resource; use the"
        f" ResourceClaimTemplate {quoted(names.size_template(name, size))} in spec.resourceClaims"
    )


def _requests(choice: dict[str, Any]) -> dict[str, Any]:
    return mapped(mapped(choice, "capacity"), "requests")


def _capacity_problems(field: str, choice: dict[str, Any], share: GpuShare, size: str | None) -> Iterator[str]:
    where, asked = f"{field}.capacity.requests", _requests(choice)
    unreadable = False
    for problem in _unreadable(where, asked):
        unreadable = True
        yield problem
    if unreadable:
        return
    yield from _unknown(where, asked)
    chosen = next((known_size for known_size in share.spec.sizes if known_size.name == size), None)
    if chosen is not None:
        yield from _size_problems(where, asked, share, chosen)
    else:
        yield from _free_problems(where, asked, share)


def _capacity_changes(
    path: str, field: str, choice: dict[str, Any], share: GpuShare, size: str | None
) -> Iterator[Change]:
    chosen = next((known_size for known_size in share.spec.sizes if known_size.name == size), None)
    if chosen is None:
        return
    pointer = path.replace(".", "/").replace("[", "/").replace("]", "")
    capacity = choice.get("capacity")
    missing = _size_changes(_requests(choice), chosen)
    if not missing:
        return
    if not capacity:
        yield Change(f"{pointer}/capacity", {"requests": missing}, f"{field}.capacity")
    elif not capacity.get("requests"):
        yield Change(f"{pointer}/capacity/requests", missing, f"{field}.capacity.requests")
    else:
        for name, value in missing.items():
            yield Change(f"{pointer}/capacity/requests/{name}", value, f"{field}.capacity.requests[{name}]")


def _size_changes(asked: Mapping[str, Any], size: Size) -> dict[str, str]:
    """The size's capacities that a claim leaves out."""
    return {name: value for name, value in size.capacities.items() if name not in asked}


def _size_problems(where: str, asked: Mapping[str, Any], share: GpuShare, size: Size) -> Iterator[str]:
    for name, fixed in {names.CAPACITY_MEMORY_BURST: "0", **size.capacities}.items():
        if name in asked and parse_quantity(str(asked[name])) != parse_quantity(fixed):
            yield (
                f"{where}[{name}]: {quoted(asked[name])}: size {quoted(size.name)} of GpuShare {quoted(share.name)} is"
                f" {fixed}; write that or leave it out, or claim another amount by class"
                f" {quoted(names.device_class(share.name))}"
            )


def _free_problems(where: str, asked: Mapping[str, Any], share: GpuShare) -> Iterator[str]:
    clients = share.clients
    threads = clients.threads.default
    if (value := asked.get(names.CAPACITY_THREADS)) is not None:
        threads = math.ceil(parse_quantity(str(value)))
        yield from _thread_problems(f"{where}[{names.CAPACITY_THREADS}]", value, threads, share)
    threads = min(max(1, threads), clients.threads.max)
    memory, field = share.memory_default_mib, f"{where}[{names.CAPACITY_MEMORY}]"
    if (value := asked.get(names.CAPACITY_MEMORY)) is not None:
        memory = math.ceil(parse_quantity(str(value)) / MIB)
        yield from _memory_problems(field, value, memory, share)
    if (value := asked.get(names.CAPACITY_MEMORY_BURST)) is not None:
        burst = math.ceil(parse_quantity(str(value)) / MIB)
        yield from _burst_problems(f"{where}[{names.CAPACITY_MEMORY_BURST}]", value, burst, memory, share)
    need = context_need_mib(threads) * clients.processes
    if LEAST_MEMORY_MIB <= memory < need:
        asks = quoted(asked.get(names.CAPACITY_MEMORY, f"{format_mib(memory)} by default"))
        contexts = contexts_take(clients.processes)
        yield (
            f"{field}: {asks} is below the {format_mib(need)} that {contexts} at {threads} percent of the threads;"
            f" write at least {format_mib(need)}"
        )


def _thread_problems(field: str, value: Any, threads: int, share: GpuShare) -> Iterator[str]:
    most = share.clients.threads.max
    advice = f"write a whole number from 1 to {most}"
    if threads < 1:
        yield f"{field}: {quoted(value)} is below 1 percent of the GPU's SMs; {advice}"
    elif threads > most:
        yield (
            f"{field}: {quoted(value)} is above the {most} percent that GpuShare {quoted(share.name)} allows"
            f" (spec.clients.threads.max); {advice}"
        )


def _memory_problems(field: str, value: Any, memory: int, share: GpuShare) -> Iterator[str]:
    most = share.memory_max_mib
    if memory < LEAST_MEMORY_MIB:
        yield f"{field}: {quoted(value)} is below {LEAST_MEMORY_MIB}Mi, which the CUDA context alone needs; write more"
    elif memory > most:
        yield (
            f"{field}: {quoted(value)} is above the {format_mib(most)} that GpuShare {quoted(share.name)} allows"
            f" (spec.clients.memory.max); write at most {format_mib(most)}"
        )


def _burst_problems(field: str, value: Any, burst: int, memory: int, share: GpuShare) -> Iterator[str]:
    """`memory`: MiB that the claim reserves."""
    limits, most = share.limits_memory, share.memory_limit_max_mib
    if parse_quantity(str(value)) < 0:
        yield f"{field}: {quoted(value)} is below 0; write what the client may use above its memory, or leave it out"
    elif burst and (limits is None or limits.overcommit_percent == 100):
        yield (
            f"{field}: {quoted(value)}: GpuShare {quoted(share.name)} lets no claim borrow"
            " (spec.clients.memory.limits, and its overcommitPercent above 100); leave it out"
        )
    elif memory + burst > most:
        yield (
            f"{field}: {quoted(value)} above the {format_mib(memory)} that are reserved is"
            f" {format_mib(memory + burst)}; GpuShare {quoted(share.name)} allows {format_mib(most)}"
            f" (spec.clients.memory.limits.max); write at most {format_mib(max(0, most - memory))}"
        )


def _unreadable(where: str, asked: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(asked):
        try:
            parse_quantity(str(asked[name]))
        except ValueError:
            value = quoted(asked[name])
            yield f"{where}[{shown(name)}]: {value} is no quantity that Kubernetes can hold; write it like 25 or 16Gi"


def _unknown(where: str, asked: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(asked):
        if name.removeprefix(f"{names.DRA_DRIVER}/") not in _CAPACITIES:
            yield f"{where}[{shown(name)}]: no such capacity; a claim may name threads, memory and memoryBurst"
        elif name.startswith(f"{names.DRA_DRIVER}/"):
            unqualified = quoted(name.removeprefix(f"{names.DRA_DRIVER}/"))
            yield f"{where}[{shown(name)}]: write {unqualified}, without the driver"
    clients = asked.get(names.CAPACITY_CLIENTS)
    if clients is not None and parse_quantity(str(clients)) != 1:
        yield f"{where}[{names.CAPACITY_CLIENTS}]: {quoted(clients)}: a claim is one client; write 1 or leave it out"
