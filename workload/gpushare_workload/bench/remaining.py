"""How long a benchmark still takes: from its plan, corrected by how long its passes really took. Pure."""

from collections.abc import Sequence

from gpushare_workload.bench.plan import Pass, Plan, pass_seconds


class Remaining:
    """Tell it each pass as it is done, in the order of the plan."""

    def __init__(self, plan: Plan, ordered: Sequence[Pass]) -> None:
        self._estimates = [pass_seconds(plan, one) for one in ordered]
        self._done = 0
        self._took = 0.0

    def done(self, seconds: float) -> None:
        self._done += 1
        self._took += seconds

    def seconds(self) -> float:
        """Never negative; the plan's own estimate before anything is done."""
        estimated = sum(self._estimates[: self._done])
        factor = self._took / estimated if estimated else 1.0
        return factor * sum(self._estimates[self._done :])


def told(seconds: float) -> str:
    """Such as `40 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
