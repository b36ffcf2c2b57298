"""Quantities and durations of Kubernetes, read exactly, and memory as whole MiB.

Guarantees: a quantity outside of what Kubernetes can hold is refused by its text, before any number is computed, so
that no text costs more than its length. Memory of a share or an annotation is plain bytes or has one of the suffixes
Ki, Mi, Gi, Ti, k, M, G, T: MPS silently misreads others. `16GB` is refused with what the user most likely meant. A
duration has whole seconds only (`90s`, `5m`, `1h30m`), so that none is misread.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from gpushare.api.base import checked, rule

MIB = 1024 * 1024
LEAST_MEMORY_MIB = 512
"""The least that a share or a claim may grant a client: a CUDA context alone takes up to 520 MiB of it."""

MEMORY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"

LONGEST = 64
"""Characters of a quantity. The API server writes at most 19 digits before the point and 9 after it."""
EXPONENTS = range(-9, 19)
"""The exponents of ten, from n (nano) to E (exa): Kubernetes holds nothing finer than 1n and nothing above 2⁶³ - 1."""

_UNITS: dict[str, Fraction | int] = {
    "n": Fraction(1, 1000**3), "u": Fraction(1, 1000**2), "m": Fraction(1, 1000), "": 1,
    "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "P": 1000**5, "E": 1000**6,
    "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5, "Ei": 1024**6,
}  # fmt: skip
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<unit>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_MEMORY = re.compile(MEMORY_PATTERN)
_MISTAKES = {
    "KB": "Ki",
    "MB": "Mi",
    "GB": "Gi",
    "TB": "Ti",
    "KiB": "Ki",
    "MiB": "Mi",
    "GiB": "Gi",
    "TiB": "Ti",
}


def parse_quantity(text: str) -> Fraction:
    """The exact value of any quantity of Kubernetes, such as `16Gi`, `1.5`, `250m` or `1e3`.

    Raises ValueError where the text is no quantity, or one that Kubernetes cannot hold.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        shown = text if len(text) <= LONGEST else text[:LONGEST] + "…"
        raise ValueError(f"{shown!r} is not a quantity of Kubernetes")
    exponent = int(match["exponent"] or 0)
    if exponent not in EXPONENTS:
        raise ValueError(f"{text!r} has an exponent beyond {EXPONENTS[0]} to {EXPONENTS[-1]}")
    power = Fraction(10**exponent) if exponent >= 0 else Fraction(1, 10**-exponent)
    return Fraction(match["number"]) * _UNITS[match["unit"] or ""] * power


@lru_cache(maxsize=1024)
def parse_memory(text: str) -> int:
    """Bytes of a quantity such as `16Gi`, `1536Mi`, `1.5Gi`, `2G` or `1073741824`.

    Raises ValueError with a sentence that says how to write it. Fractions of a byte are refused.
    """
    if _MEMORY.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a memory quantity{_hint(text)}")
    size = parse_quantity(text)
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_mib(text: str) -> int:
    """Whole MiB of a quantity, rounded down: a limit never grants more than what was written."""
    return parse_memory(text) // MIB


def format_mib(mib: int) -> str:
    """The shortest binary quantity that says exactly `mib` MiB."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 and mib else f"{mib}Mi"


def _hint(text: str) -> str:
    for wrong, right in _MISTAKES.items():
        number = text.removesuffix(wrong)
        if number != text and _MEMORY.fullmatch(number + right):
            return f'; write "{number}{right}"'
    return '; write it like "16Gi" or "1536Mi"'


DURATION_PATTERN = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
Duration = Annotated[
    str,
    Field(
        max_length=16,
        json_schema_extra=checked(
            rule(
                f"size(self) > 0 && self.matches(r'{DURATION_PATTERN}')",
                "must be a duration of whole seconds, such as 90s, 5m or 1h30m",
                says="'\"' + self + '\" is not a duration of whole seconds: write it like 90s, 5m or 1h30m'",
            )
        ),
    ),
]
_DURATION = re.compile(r"(?:(?P<h>[0-9]{1,6})h)?(?:(?P<m>[0-9]{1,6})m)?(?:(?P<s>[0-9]{1,6})s)?")


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `90s`, `5m` or `1h30m`; `0s` is zero.

    Raises ValueError with a sentence that says how to write it.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f'{text!r} is not a duration; write it like "90s", "5m" or "1h30m"')
    hours, minutes, seconds = (int(match[unit] or 0) for unit in "hms")
    return hours * 3600 + minutes * 60 + seconds
