"""A grant as environment variables, for CUDA and for the program, and back.

MPS ignores a memory limit that it cannot read, without an error. So every value is written in the one form that was
measured to work: whole percent, whole MiB with suffix M, device index 0 (a client sees exactly one GPU).
"""

import re
from collections.abc import Mapping

from gpushare.api import names
from gpushare.api.client_class import ClientClass
from gpushare.api.quantity import MIB
from gpushare.grant.model import Grant

VARIABLES = (
    names.ENV_PIPE_DIRECTORY,
    names.ENV_LOG_DIRECTORY,
    names.ENV_THREADS,
    names.ENV_MEMORY,
    names.ENV_PRIORITY,
    names.ENV_SHARE,
    names.ENV_GRANTED_THREADS,
    names.ENV_GRANTED_MEMORY,
    names.ENV_MEMORY_LIMIT,
    names.ENV_GRANTED_PROCESSES,
    names.ENV_GRANTED_FRACTION,
    names.ENV_CLASS,
    names.ENV_BESIDE_PROTECTED,
)
"""Every variable that `client_environment` may set."""
NORMAL_PRIORITY = "0"
"""CUDA_MPS_CLIENT_PRIORITY of every client: MPS' priorities protect nobody."""
_FRACTION_STEPS = 10_000
_NUMBER = re.compile(r"[0-9]{1,15}")


def client_environment(grant: Grant, gpu_memory_mib: int | None) -> dict[str, str]:
    """Every CUDA_MPS_* and GPUSHARE_* variable of a container with this grant.

    `gpu_memory_mib`: total memory of the share's largest GPU; None or 0: not known, and the fraction is left out. vLLM
    and PyTorch take that fraction of the GPU for each process: by the largest GPU it never exceeds the grant on a
    smaller one. GPUSHARE_MEMORY_BYTES is for the whole container, GPUSHARE_MEMORY_FRACTION for one process. Both are of
    what is reserved, so that a program that takes all at its start borrows nothing; one that means to borrow reads
    GPUSHARE_MEMORY_LIMIT_BYTES, which is there only where the limit is higher.
    """
    environment = {
        names.ENV_PIPE_DIRECTORY: names.CLIENT_PIPE_DIR,
        names.ENV_LOG_DIRECTORY: names.CLIENT_LOG_DIR,
        names.ENV_THREADS: str(grant.threads),
        names.ENV_MEMORY: memory_variable(grant.process_limit_mib),
        names.ENV_PRIORITY: NORMAL_PRIORITY,
        names.ENV_SHARE: grant.share,
        names.ENV_GRANTED_THREADS: str(grant.threads),
        names.ENV_GRANTED_MEMORY: str(grant.memory_mib * MIB),
        names.ENV_GRANTED_PROCESSES: str(grant.processes),
    }
    if grant.client_class is not None:
        environment[names.ENV_CLASS] = grant.client_class.value
    if grant.threads_beside_protected:
        environment[names.ENV_BESIDE_PROTECTED] = str(grant.threads_beside_protected)
    if grant.burst_mib:
        environment[names.ENV_MEMORY_LIMIT] = str(grant.limit_mib * MIB)
    if gpu_memory_mib:
        environment[names.ENV_GRANTED_FRACTION] = _fraction(grant.process_memory_mib, gpu_memory_mib)
    return environment


def memory_variable(mib: int) -> str:
    """The value of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT that grants a process so much."""
    return f"0={mib}M"


def grant_from_environment(environment: Mapping[str, str]) -> Grant | None:
    """The grant in a container's environment; None where there is none, or one that we did not write."""
    share = environment.get(names.ENV_SHARE, "")
    numbers = [
        _number(environment, name)
        for name in (names.ENV_THREADS, names.ENV_GRANTED_MEMORY, names.ENV_GRANTED_PROCESSES)
    ]
    if not share or any(number is None for number in numbers):
        return None
    threads, size, processes = (number or 0 for number in numbers)
    limit = _number(environment, names.ENV_MEMORY_LIMIT) if names.ENV_MEMORY_LIMIT in environment else size
    if processes < 1 or not 1 <= threads <= 100 or size // MIB < processes or limit is None or limit < size:
        return None
    grant = Grant(share, threads, size // MIB, processes, (limit - size) // MIB, *_class(environment))
    expected = client_environment(grant, None)
    del expected[names.ENV_PRIORITY]  # pods of before may have another one
    return grant if all(environment.get(name) == value for name, value in expected.items()) else None


def _class(environment: Mapping[str, str]) -> tuple[ClientClass | None, int]:
    """(class, threads beside protected clients). A word of another release is none."""
    word, percent = environment.get(names.ENV_CLASS), _number(environment, names.ENV_BESIDE_PROTECTED) or 0
    client_class = next((item for item in ClientClass if item.value == word), None)
    return client_class, percent if client_class is ClientClass.BEST_EFFORT and percent <= 100 else 0


def _fraction(part_mib: int, whole_mib: int) -> str:
    """Rounded down to four decimals, in integers: a float could round up."""
    steps = min(part_mib * _FRACTION_STEPS // whole_mib, _FRACTION_STEPS)
    return f"{steps // _FRACTION_STEPS}.{steps % _FRACTION_STEPS:04d}"


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if _NUMBER.fullmatch(value) else None
