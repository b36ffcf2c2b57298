"""What is asked of a service beside a job: its objective, the rate at which requests arrive, and how the job may run.
Pure.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

RATE_VARIABLE = "OFFERED_RATE"
"""Tells the service at how many requests per second it is to be asked. Names with GPUSHARE_ are those of a grant."""
STEPS = (100, 75, 50, 35, 25, 10)
"""Percent of the SMs for the job that are tried, below the most that it may have."""
_SLO = re.compile(r"p(50|99)=([0-9]+(?:\.[0-9]+)?)(us|ms|s)")
_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%?)")
MOST_PERCENT = 95.0
"""Of what the service can do: nearer to it the queue has no end, job or not."""


@dataclass(frozen=True, slots=True)
class Slo:
    """A percentile of the latency of requests, 50 or 99, that is to stay within `ms`."""

    percentile: int
    ms: float

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """From such as `p99=20ms`. Raises ValueError naming the option, with its value."""
        match = _SLO.fullmatch(text)
        if match is None or not 0 < float(match[2]) * _MS[match[3]] < math.inf:
            raise ValueError(f"--slo {text!r}: write p50= or p99= with a time, such as p99=20ms")
        return cls(int(match[1]), float(match[2]) * _MS[match[3]])

    @property
    def least_requests(self) -> int:
        """Below so many, the percentile is the slowest of them."""
        return 100 // (100 - self.percentile)

    def __str__(self) -> str:
        return f"p{self.percentile} of at most {self.ms:g} ms"


@dataclass(frozen=True, slots=True)
class AskedRate:
    """Requests per second; or percent of what the service does without a rate, which is measured first."""

    per_second: float | None = None
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> "AskedRate":
        """From `200` or `40%`. Raises ValueError naming the option, with its value."""
        match = _RATE.fullmatch(text)
        value = float(match[1]) if match else 0.0
        if match is None or not 0 < value < math.inf or (match[2] and value > MOST_PERCENT):
            raise ValueError(
                f"--rate {text!r}: write requests per second, such as 200, or up to {MOST_PERCENT:g}% of what the "
                "service can do, such as 40%"
            )
        return cls(percent=value) if match[2] else cls(per_second=value)


@dataclass(frozen=True, slots=True)
class JobWay:
    """How the job runs beside the service: as best effort, with `percent` of the SMs while the service is active, or
    as a normal client with `percent` of the threads always.
    """

    best_effort: bool
    percent: int

    def __str__(self) -> str:
        if self.best_effort:
            return f"BestEffort, {self.percent} % of the SMs while the service is active"
        return "Normal" if self.percent == 100 else f"Normal, capped at {self.percent} % of the threads"

    def as_json(self) -> dict[str, Any]:
        return {"best_effort": self.best_effort, "percent": self.percent}


@dataclass(frozen=True, slots=True)
class ProtectTerms:
    """`rate` None: the service has a rate of its own. `seconds`: of a window. `normal`, `best_effort`: the most percent
    that the job may have in that class; 0: it may not have the class.
    """

    slo: Slo
    rate: AskedRate | None
    seconds: float
    normal: int = 100
    best_effort: int = 0

    def ways(self) -> list[list[JobWay]]:
        """The ways to try, class by class, from the most percent on."""
        classes = ((False, self.normal), (True, self.best_effort))
        return [
            [JobWay(best_effort, percent) for percent in (most, *(step for step in STEPS if step < most))]
            for best_effort, most in classes
            if most
        ]

    def as_json(self) -> dict[str, Any]:
        rate = self.rate or AskedRate()
        return {
            "percentile": self.slo.percentile,
            "slo_ms": self.slo.ms,
            "rate": rate.per_second,
            "rate_percent": rate.percent,
            "seconds": self.seconds,
            "normal": self.normal,
            "best_effort": self.best_effort,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ProtectTerms":
        """KeyError: one is missing."""
        rate = AskedRate(value["rate"], value["rate_percent"])
        slo = Slo(value["percentile"], value["slo_ms"])
        return cls(slo, None if rate == AskedRate() else rate, value["seconds"], value["normal"], value["best_effort"])
