"""A 2-D Poisson problem with a known answer, cut into slabs of rows. Pure.

-laplace(u) = f on the unit square, u = 0 on its edge, and f such that u = sin(pi x) sin(pi y). This u is also an
eigenvector of the five-point scheme, for the eigenvalue 8 / h^2 sin^2(pi h / 2) with h = 1 / (size + 1). Therefore the
answer of the scheme is (x / sin x)^2 times the exact answer, with x = pi h / 2, and each Jacobi sweep reduces the
distance to it by the factor cos(pi h).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpushare_workload.backend.interface import Field

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PoissonProblem:
    size: int
    """Inner points in each direction."""

    @property
    def spacing(self) -> float:
        return 1.0 / (self.size + 1)

    def exact(self) -> Field:
        """The exact answer, (size + 2, size + 2) with the edges."""
        line = np.sin(np.pi * np.linspace(0.0, 1.0, self.size + 2))
        line[0] = line[-1] = 0.0
        result: Field = np.outer(line, line)
        return result

    def source(self) -> Field:
        """The function f at every point, (size + 2, size + 2)."""
        result: Field = 2.0 * np.pi**2 * self.exact()
        return result

    def error_bound(self, last_change: float) -> float:
        """The largest error that the values may have when the last sweep changed none by more than `last_change`."""
        half = np.pi * self.spacing / 2.0
        factor = np.cos(2.0 * half)
        scheme = (half / np.sin(half)) ** 2 - 1.0
        unfinished = last_change * factor / (1.0 - factor)
        return float(scheme + unfinished + ROUNDING)

    def slabs(self, parts: int) -> list[slice]:
        """The rows of each part, with a halo row on each side. Neighbours share two rows.

        Raises ValueError for more parts than rows.
        """
        if not 1 <= parts <= self.size:
            raise ValueError(f"{parts} processes for {self.size} rows: each needs at least one")
        ends = np.cumsum([0, *(len(rows) for rows in np.array_split(np.arange(self.size), parts))])
        return [slice(int(first), int(last) + 2) for first, last in pairwise(ends)]
