"""How MPS reads limits, with all its traps. Pure; every rule is measured unless marked assumed."""

import re

MIB = 1 << 20
SERVER_CONTEXT_MIB = 66
PLAIN_CONTEXT_MIB = 526
CLIENT_CEILING = 48
DEFAULT_THREADS = 100.0
MINIMUM_SMS = 8

_CONTEXT_MIB = ((5.0, 60), (12.0, 110), (25.0, 180), (50.0, 348), (100.0, 520))
_UNITS = {"k": 1 << 10, "m": MIB, "g": 1 << 30, "t": 1 << 40}
_NEGATIVE_LIMIT = 17179869183 << 30
"""The value of `-1`: 17179869183G."""


def enforced_sms(sms: int, threads: float) -> int:
    """The SMs of a client with `threads` percent of `sms`: a multiple of 2, at least 8."""
    return min(sms, max(MINIMUM_SMS, int(sms * threads / 100) // 2 * 2))


def context_mib(threads: float) -> int:
    """The size in MiB of a client's own context, by its thread percentage.

    Measured at 5, 12 (82-146), 25 (148-218), 50 and 100 percent. Assumed: linear in between, constant below.
    """
    low_threads, low_mib = _CONTEXT_MIB[0]
    for high_threads, high_mib in _CONTEXT_MIB:
        if threads <= high_threads:
            share = (threads - low_threads) / (high_threads - low_threads) if high_threads > low_threads else 0.0
            return round(low_mib + (high_mib - low_mib) * max(share, 0.0))
        low_threads, low_mib = high_threads, high_mib
    return low_mib


def percentage(text: str) -> float | None:
    """A thread percentage in (0, 100]; None if MPS does not accept the text as one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 100 else None


def client_threads(default: float, variable: str | None) -> float:
    """A client's percentage. Its variable can only lower it; an invalid one falls back to the default."""
    own = percentage(variable) if variable is not None else None
    return default if own is None else min(own, default)


def memory_value(text: str) -> int | None:
    """The limit in bytes that the daemon reads from `text`; None: no limit.

    Digits, then one letter: `4G`, `4GB`, `4g`, `4096M`. Anything else after the digits means MiB (`1.5G` is 1M).
    Without digits, or with 0, the limit is silently removed. A negative number becomes 17179869183G.
    """
    match = re.match(r"\s*(-?)(\d*)(.?)", text)
    if match is None or not match[2] or int(match[2]) == 0:
        return None
    if match[1]:
        return _NEGATIVE_LIMIT
    return int(match[2]) * _UNITS.get(match[3].lower(), MIB)


def memory_text(limit: int | None) -> str:
    """A limit as the daemon prints it (measured): from 1 GiB on whole GiB, rounded down; nothing without a limit."""
    if limit is None:
        return ""
    return f"{limit >> 30}G\n" if limit >= 1 << 30 else f"{limit // MIB}M\n"


def device_limit(limits: dict[str, int], index: int, uuid: str) -> int | None:
    """The daemon's limit for a device, set by index or by UUID; if both are set, the smaller one (assumed)."""
    return min((limits[key] for key in (str(index), uuid) if key in limits), default=None)


def client_memory(default: int | None, variable: str | None, uuid: str) -> int | None:
    """A client's limit in bytes; None: no limit.

    A well-formed variable can only lower the default. A single entry that is malformed, is 0, or names no visible
    device removes all limits, the default included. A client here sees one device: `0`, or its UUID.
    """
    if not variable:
        return default
    own: list[int] = []
    for entry in variable.split(","):
        device, _, value = entry.partition("=")
        limit = memory_value(value)
        if device not in ("0", uuid) or limit is None:
            return None
        own.append(limit)
    return min(own) if default is None else min([*own, default])


def sees_device(visible: str | None, uuid: str) -> bool:
    """Tells whether a client with this CUDA_VISIBLE_DEVICES sees its daemon's only GPU. CUDA stops at an invalid
    entry."""
    return visible is None or visible.split(",")[0].strip() in ("0", uuid)
