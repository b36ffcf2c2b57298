"""Admission of ResourceClaims and ResourceClaimTemplates that name a DeviceClass of ours.

Guarantees: one that names none is never touched; nothing that a tenant wrote is replaced; what is admitted asks for one
part of one GPU within its share's bounds, and one of a size's class for exactly that size. What cannot be seen here,
another driver's class that selects our devices, say, the node's agent checks again before a container starts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.admission.answer import Admitted, Answer, Change, Denied, Reason, listed, mapped, quoted
from gpushare.admission.capacities import free_problems, size_changes, size_problems
from gpushare.admission.data import AdmissionData
from gpushare.admission.refusals import share_problems, suggestion
from gpushare.api import names
from gpushare.api.gpushare import GpuShare


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


def admit_claim(body: dict[str, Any], world: AdmissionData) -> Answer:
    """Decides on a claim or template that is being created."""
    if not shares_claimed(body):
        return Admitted()
    templated = "spec" in mapped(body, "spec")
    prefix = "spec.spec" if templated else "spec"
    annotations = mapped(mapped(body, "metadata"), "annotations")
    by_scheduler = not templated and annotations.get(names.ANNOTATION_SCHEDULERS_CLAIM) == "true"
    spec = claim_spec(body)
    problems: dict[str, Reason] = {}
    if not by_scheduler:
        problems.update(dict.fromkeys(_number_problems(prefix, spec), Reason.CLAIM))
    problems.update(dict.fromkeys(_config_problems(prefix, spec), Reason.CLAIM))
    changes: list[Change] = []
    for place, choice in _choices(spec):
        name, size = _class(choice)
        if not name:
            continue
        field = f"{prefix}.devices.{place}"
        problems.update(dict.fromkeys(_request_problems(field, choice), Reason.CLAIM))
        class_field = f"{field}.deviceClassName"
        refusals = list(_class_problems(class_field, name, size, world))
        if by_scheduler and size is not None:
            refusals.append(_not_by_name(class_field, name, size))
        problems.update(dict.fromkeys(refusals, Reason.SHARE))
        share = world.shares.get(name)
        if share is None or refusals:
            continue
        problems.update(dict.fromkeys(_capacity_problems(field, choice, share, size), Reason.CAPACITY))
        changes += _capacity_changes(f"/{prefix}/devices/{place}", field, choice, share, size)
    if problems:
        return Denied(tuple(problems), frozenset(problems.values()))
    return Admitted(tuple(changes))


def check_claim(body: dict[str, Any], world: AdmissionData) -> Answer:
    """Decides on a claim as it will be stored: a size's capacities must be there."""
    answer = admit_claim(body, world)
    if isinstance(answer, Denied) or not answer.changes:
        return answer
    return Denied(
        tuple(
            f"{change.field}: is missing: the claim was changed after gpushare's mutating webhook, or never passed it;"
            " look for an admission webhook that takes it out, then create the claim again"
            for change in answer.changes
        ),
        frozenset([Reason.CHANGED_AFTERWARDS]),
    )


def _choices(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where below `devices`, request) of everything that a claim may be allocated by."""
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
            f"{prefix}.devices.requests: {len(requests)} requests: a claim of gpushare's classes has exactly one, since"
            " a client reaches one part of one GPU; write a claim for each container"
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


def _class_problems(field: str, name: str, size: str | None, world: AdmissionData) -> Iterator[str]:
    yield from share_problems(field, name, world)
    share = world.shares.get(name)
    if share is None:
        return
    if not share.by_claims:
        yield (
            f"{field}: GpuShare {quoted(name)} is delivered by DevicePlugin (spec.delivery); ask for the resource"
            f" {names.slot_resource(name)} in place of a claim"
        )
    elif size is not None and size not in (known := [one.name for one in share.spec.sizes]):
        yield f"{field}: GpuShare {quoted(name)} has no size {quoted(size)}{suggestion(size, known, 'sizes')}"


def _not_by_name(field: str, name: str, size: str) -> str:
    return (
        f"{field}: {quoted(names.size_class(name, size))} cannot be asked for as an extended resource; use the"
        f" ResourceClaimTemplate {quoted(names.size_template(name, size))} in spec.resourceClaims"
    )


def _requests(choice: dict[str, Any]) -> dict[str, Any]:
    return mapped(mapped(choice, "capacity"), "requests")


def _capacity_problems(field: str, choice: dict[str, Any], share: GpuShare, size: str | None) -> Iterator[str]:
    where = f"{field}.capacity.requests"
    chosen = next((one for one in share.spec.sizes if one.name == size), None)
    if chosen is not None:
        return size_problems(where, _requests(choice), share, chosen)
    return free_problems(where, _requests(choice), share)


def _capacity_changes(
    path: str, field: str, choice: dict[str, Any], share: GpuShare, size: str | None
) -> Iterator[Change]:
    chosen = next((one for one in share.spec.sizes if one.name == size), None)
    if chosen is None:
        return
    pointer = path.replace(".", "/").replace("[", "/").replace("]", "")
    capacity = choice.get("capacity")
    missing = size_changes(_requests(choice), chosen)
    if not missing:
        return
    if not capacity:
        yield Change(f"{pointer}/capacity", {"requests": missing}, f"{field}.capacity")
    elif not capacity.get("requests"):
        yield Change(f"{pointer}/capacity/requests", missing, f"{field}.capacity.requests")
    else:
        for name, value in missing.items():
            yield Change(f"{pointer}/capacity/requests/{name}", value, f"{field}.capacity.requests[{name}]")
