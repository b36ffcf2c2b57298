"""The grant of this container, read from its environment, and how MPS turns it into SMs and memory."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

MIB = 1024 * 1024
LEAST_SMS = 8
"""MPS never gives a client fewer SMs than this on a GPU of 132, and steps of two (measured on an H200)."""


@dataclass(frozen=True, slots=True)
class ContainerGrant:
    """`threads`: percent of the SMs for each process; `memory`: bytes that the container may use at most, what it may
    borrow included. None means unlimited.
    """

    share: str | None
    threads: int | None
    memory: int | None
    processes: int = 1
    """MPS contexts that the container may have. Each may use an equal part of the memory."""

    @property
    def process_memory(self) -> int | None:
        """Bytes for one process, rounded down to whole MiB as MPS does."""
        return None if self.memory is None else self.memory // MIB // self.processes * MIB

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ContainerGrant":
        """Reads GPUSHARE_SHARE, _THREADS, _MEMORY_BYTES, _MEMORY_LIMIT_BYTES and _PROCESSES. Raises ValueError naming a
        malformed one.
        """
        limit = _number(environment, "GPUSHARE_MEMORY_LIMIT_BYTES")
        return cls(
            share=environment.get("GPUSHARE_SHARE"),
            threads=_number(environment, "GPUSHARE_THREADS"),
            memory=limit if limit is not None else _number(environment, "GPUSHARE_MEMORY_BYTES"),
            processes=max(1, _number(environment, "GPUSHARE_PROCESSES") or 1),
        )

    def as_json(self) -> dict[str, str | int | None]:
        return asdict(self)


def granted_sms(total: int, percent: int) -> int:
    """The SMs that MPS gives for a percentage of `total`: rounded down to a multiple of two, at least eight."""
    return max(LEAST_SMS, total * percent // 100 // 2 * 2)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not a whole number") from error
