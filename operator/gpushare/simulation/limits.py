"""How MPS turns numbers and texts into limits, with all its traps. Pure; every rule measured unless marked assumed."""

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
"""What `-1` becomes: 17179869183G."""


def enforced_sms(sms: int, threads: float) -> int:
    """SMs that `threads` percent leaves of `sms`: steps of 2, never less than 8."""
    return min(sms, max(MINIMUM_SMS, int(sms * threads / 100) // 2 * 2))


def context_mib(threads: float) -> int:
    """MiB that a client's own context takes, by its thread percentage.

    Measured at 5, 12 (82-146), 25 (148-218), 50 and 100 percent; linear between and flat below, which is assumed.
    """
    low_threads, low_mib = _CONTEXT_MIB[0]
    for high_threads, high_mib in _CONTEXT_MIB:
        if threads <= high_threads:
            share = (threads - low_threads) / (high_threads - low_threads) if high_threads > low_threads else 0.0
            return round(low_mib + (high_mib - low_mib) * max(share, 0.0))
        low_threads, low_mib = high_threads, high_mib
    return low_mib


def percentage(text: str) -> float | None:
    """A thread percentage within (0, 100], or None where MPS does not take the text for one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 100 else None


def client_threads(default: float, variable: str | None) -> float:
    """A client's percentage: its variable only tightens; what is no percentage falls back to the default."""
    own = percentage(variable) if variable is not None else None
    return default if own is None else min(own, default)


def memory_value(text: str) -> int | None:
    """The bytes that the daemon takes `text` for; None is no limit.

    Digits, then one letter: `4G`, `4GB`, `4g`, `4096M`. Anything else after the digits counts as MiB (`1.5G` is 1M);
    no digits at all, or 0, silently removes the limit; a negative number becomes 17179869183G.
    """
    match = re.match(r"\s*(-?)(\d*)(.?)", text)
    if match is None or not match[2] or int(match[2]) == 0:
        return None
    if match[1]:
        return _NEGATIVE_LIMIT
    return int(match[2]) * _UNITS.get(match[3].lower(), MIB)


def memory_text(limit: int | None) -> str:
    """How the daemon prints a limit (measured): whole GiB, rounded down, from 1 GiB on; nothing where there is none."""
    if limit is None:
        return ""
    return f"{limit >> 30}G\n" if limit >= 1 << 30 else f"{limit // MIB}M\n"


def device_limit(limits: dict[str, int], index: int, uuid: str) -> int | None:
    """The daemon's limit for a device, set by index or by UUID; the smaller one where both are set (assumed)."""
    return min((limits[key] for key in (str(index), uuid) if key in limits), default=None)


def client_memory(default: int | None, variable: str | None, uuid: str) -> int | None:
    """A client's limit in bytes, or None.

    A well-formed variable only tightens the default. One entry that is malformed, is 0, or names no visible device
    removes every limit, the default included. A client of ours sees one device: `0`, or its UUID.
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
    """Whether CUDA_VISIBLE_DEVICES leaves a client its daemon's only GPU. CUDA reads up to the first invalid entry."""
    return visible is None or visible.split(",")[0].strip() in ("0", uuid)
