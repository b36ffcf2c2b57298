"""Kubernetes memory quantities as whole MiB, refusing what MPS would silently misread.

Only plain bytes and binary suffixes (Ki, Mi, Gi, Ti) are taken, plus decimal ones (k, M, G, T) as Kubernetes
defines them. `16GB` is no Kubernetes quantity and is refused with the suggestion that the user most likely meant.
"""

import re
from fractions import Fraction
from functools import lru_cache

MIB = 1024 * 1024

MEMORY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?$"

_UNITS = {
    "": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4,
    "k": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
}  # fmt: skip
_QUANTITY = re.compile(r"^(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?)(?P<unit>Ki|Mi|Gi|Ti|k|M|G|T)?$")
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


@lru_cache(maxsize=1024)
def parse_memory(text: str) -> int:
    """Bytes of a quantity such as `16Gi`, `1536Mi`, `1.5Gi`, `2G` or `1073741824`.

    Raises ValueError with a sentence that tells how to write it. Fractions of a byte are refused.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a memory quantity{_hint(text)}")
    size = Fraction(match["number"]) * _UNITS[match["unit"] or ""]
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
        if number != text and _QUANTITY.match(number + right):
            return f'; write "{number}{right}"'
    return '; write it like "16Gi" or "1536Mi"'
