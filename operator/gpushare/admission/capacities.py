"""What a claim may ask for of a GPU: threads and memory, within its share's bounds, or exactly a size's.

Quantities are read as Kubernetes reads them; a share's devices round requests up to whole percent and MiB, so what is
compared with a bound is rounded up.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from gpushare.admission.answer import quoted
from gpushare.api import names
from gpushare.api.gpushare import GpuShare, Size
from gpushare.api.quantity import MIB, format_mib
from gpushare.grant.model import LEAST_MEMORY_MIB, context_need_mib

_KNOWN = (names.CAPACITY_THREADS, names.CAPACITY_MEMORY, names.CAPACITY_CLIENTS)


def size_changes(asked: Mapping[str, Any], size: Size) -> dict[str, str]:
    """The size's capacities that a claim leaves out."""
    return {name: value for name, value in size.capacities.items() if name not in asked}


def size_problems(where: str, asked: Mapping[str, Any], share: GpuShare, size: Size) -> Iterator[str]:
    yield from _unknown(where, asked)
    for name, fixed in size.capacities.items():
        if name in asked and _number(asked[name]) != _number(fixed):
            yield (
                f"{where}[{name}]: {quoted(asked[name])}: size {quoted(size.name)} of GpuShare {quoted(share.name)} is"
                f" {fixed}; write that or leave it out, or claim another amount by class"
                f" {quoted(names.device_class(share.name))}"
            )


def free_problems(where: str, asked: Mapping[str, Any], share: GpuShare) -> Iterator[str]:
    yield from _unknown(where, asked)
    clients = share.spec.clients
    threads = clients.threads.default
    if (value := asked.get(names.CAPACITY_THREADS)) is not None:
        threads = _whole(value)
        yield from _thread_problems(f"{where}[{names.CAPACITY_THREADS}]", value, threads, share)
    threads = min(max(1, threads), clients.threads.max)
    memory, field = share.memory_default_mib, f"{where}[{names.CAPACITY_MEMORY}]"
    if (value := asked.get(names.CAPACITY_MEMORY)) is not None:
        memory = -(-_whole(value) // MIB)
        yield from _memory_problems(field, value, memory, share)
    need = context_need_mib(threads) * clients.processes
    if LEAST_MEMORY_MIB <= memory < need:
        shown = quoted(asked.get(names.CAPACITY_MEMORY, f"{format_mib(memory)} by default"))
        contexts = "one CUDA context takes" if clients.processes == 1 else f"{clients.processes} CUDA contexts take"
        yield (
            f"{field}: {shown} is below the {format_mib(need)} that {contexts} at {threads} percent of the threads;"
            f" write at least {format_mib(need)}"
        )


def _thread_problems(field: str, value: Any, threads: int, share: GpuShare) -> Iterator[str]:
    most = share.spec.clients.threads.max
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


def _unknown(where: str, asked: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(asked):
        if name.removeprefix(f"{names.DRA_DRIVER}/") not in _KNOWN:
            yield f"{where}[{name}]: no such capacity; a claim may name {names.CAPACITY_THREADS} and memory"
        elif name.startswith(f"{names.DRA_DRIVER}/"):
            yield f"{where}[{name}]: write {quoted(name.removeprefix(f'{names.DRA_DRIVER}/'))}, without the driver"
    clients = asked.get(names.CAPACITY_CLIENTS)
    if clients is not None and _number(clients) != 1:
        yield f"{where}[{names.CAPACITY_CLIENTS}]: {quoted(clients)}: a claim is one client; write 1 or leave it out"


def _number(value: Any) -> Decimal:
    """Of a quantity that the API server took; whatever it could not read is refused there."""
    return Decimal(parse_quantity(str(value)))


def _whole(value: Any) -> int:
    """Rounded up, as the scheduler does."""
    return math.ceil(_number(value))
