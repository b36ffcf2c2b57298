"""limits: limits that are in force, limits that are not, and the throughput against the granted SMs."""

import json
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.interface import DeviceProperties
from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.backend.work import Peaks
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.gpus.grant import MIB, ContainerGrant
from gpushare_workload.scenarios.isolation import limits
from tests.unit.workload.scenarios.isolation.fake_backend import FakeBackend

QUARTER = ContainerGrant("s", 25, None)
PER_SECOND = 100.0


def test_limits_that_hold_raise_nothing_and_are_emitted() -> None:
    out = StringIO()
    limits.check(FakeBackend(), ContainerGrant("s", 25, 4096 * MIB), JsonLines("limits", out))  # type: ignore[arg-type]
    line = json.loads(out.getvalue())
    assert (line["problems"], line["checked"]) == ([], ["threads", "memory"])
    assert line["observed"]["above_refused"] is True


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (FakeBackend(sms=132), "132 SMs are visible, 25 % of 132 are 32"),
        (FakeBackend(free=143155 * MIB), "bytes are free, only"),
        (FakeBackend(limit=143155 * MIB), "was not refused"),
    ],
    ids=["threads", "memory-info", "allocation"],
)
def test_a_limit_that_is_not_in_force_is_named(backend: FakeBackend, words: str) -> None:
    grant = ContainerGrant("s", 25, 4096 * MIB)
    with pytest.raises(WrongError, match=words):
        limits.check(backend, grant, JsonLines("limits", StringIO()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "grant", "words"),
    [
        (FakeBackend(), ContainerGrant(None, None, None), "not set: nothing was granted, so nothing was checked"),
        (NumpyBackend(), QUARTER, "GPUSHARE_THREADS=25: no GPU shows its SMs here, so nothing was checked"),
    ],
    ids=["no grant", "no GPU"],
)
def test_a_limit_that_nothing_shows_is_not_checked(backend: Any, grant: ContainerGrant, words: str) -> None:
    assert limits.check(backend, grant, JsonLines("limits", StringIO())) == []
    assert words in limits.why_unchecked(grant)


class Saturated(NumpyBackend):
    """A GPU of 132 SMs of which this process gets `share` of the peak throughput."""

    def __init__(self, share: float, peak: bool = True) -> None:
        super().__init__()
        self.share, self.peak = share, peak

    def device(self) -> DeviceProperties:
        return DeviceProperties("NVIDIA H200", "GPU-1", 132, 132, 1, 1)

    def peaks(self) -> Peaks:
        # 1056 blocks of 256 threads, each 4 chains of 32 iterations (NumPy's 256th of 8192), 2 operations each.
        return Peaks(flops=1056 * 256 * 4 * 32 * 2 * PER_SECOND / self.share if self.peak else None)


def check(backend: NumpyBackend, grant: ContainerGrant) -> dict[str, Any]:
    def measure(launch: Any, wait: Any, seconds: float) -> float:
        launch()
        return PER_SECOND

    out = StringIO()
    limits.check_throughput(backend, grant, 0.1, JsonLines("limits", out), measure)
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


def test_a_throughput_within_the_granted_sms_is_a_fraction_of_the_peak() -> None:
    line = check(Saturated(0.9), ContainerGrant("s", 100, None))
    assert (line["share_of_peak"], line["granted_share"], line["launches_per_second"]) == (0.9, 1.0, PER_SECOND)


def test_a_throughput_above_the_granted_sms_is_a_limit_not_in_force() -> None:
    with pytest.raises(WrongError, match=r"90\.0% of the GPU's peak throughput was reached, 24\.2% of its SMs"):
        check(Saturated(0.9), QUARTER)


def test_a_throughput_above_the_whole_gpus_peak_is_refused_without_a_grant() -> None:
    with pytest.raises(WrongError, match=r"120\.0% of the GPU's peak"):
        check(Saturated(1.2), ContainerGrant(None, None, None))


def test_without_a_known_peak_the_throughput_is_not_judged() -> None:
    assert check(Saturated(1.0, peak=False), QUARTER)["share_of_peak"] is None


@pytest.mark.parametrize(
    ("threads", "total", "share"),
    [(25, 132, 32 / 132), (1, 132, 8 / 132), (None, 132, None), (25, None, None), (1, 4, 1)],
)
def test_the_granted_fraction_is_that_of_the_sms_which_mps_gives(
    threads: int | None, total: int | None, share: float | None
) -> None:
    assert limits.granted_share(ContainerGrant(None, threads, None), total) == share


def test_a_rate_counts_the_launches_that_ended() -> None:
    launches: list[int] = []
    assert 0 < limits.rate(lambda: launches.append(1), lambda: None, 0.02) <= len(launches) / 0.02
