"""limits: the throughput of a saturating kernel against the SMs that were granted."""

import json
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.backend.interface import DeviceProperties
from gpushare_workload.backend.work import Peaks
from gpushare_workload.gpus.grant import ContainerGrant
from gpushare_workload.events import EventWriter, WrongError
from gpushare_workload.scenarios.isolation import limits

QUARTER = ContainerGrant("s", 25, None)
PER_SECOND = 100.0


class Saturated(NumpyBackend):
    """A GPU of 132 SMs of which this process gets `share` of the peak throughput."""

    def __init__(self, share: float, peak: bool = True) -> None:
        super().__init__()
        self.share, self.peak = share, peak

    def device(self) -> DeviceProperties:
        return DeviceProperties("NVIDIA H200", "GPU-1", 132, 8, 1, 1)

    def peaks(self) -> Peaks:
        # 64 blocks of 256 threads, each 4 chains of 32 iterations (NumPy's 256th of 8192), 2 operations each.
        return Peaks(flops=64 * 256 * 4 * 32 * 2 * PER_SECOND / self.share if self.peak else None)


def check(backend: NumpyBackend, grant: ContainerGrant, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(limits, "rate", lambda launch, wait, seconds: (launch(), PER_SECOND)[1])
    out = StringIO()
    limits.check_throughput(backend, grant, 0.1, EventWriter("limits", out))
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


def test_a_throughput_within_the_granted_sms_is_reported_as_a_share_of_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = check(Saturated(0.9), ContainerGrant("s", 100, None), monkeypatch)
    assert (told["share_of_peak"], told["granted_share"], told["launches_per_second"]) == (0.9, 1.0, PER_SECOND)


def test_a_throughput_above_the_granted_sms_is_a_limit_that_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    # At least 8 SMs are given, which are all of this GPU: so the grant is told of a larger one.
    monkeypatch.setattr(limits, "granted_share", lambda *_: 0.25)
    with pytest.raises(WrongError, match=r"90\.0% of the GPU's peak throughput was reached, 25\.0% of its SMs"):
        check(Saturated(0.9), QUARTER, monkeypatch)


def test_a_throughput_above_the_whole_gpus_peak_is_refused_without_a_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongError, match=r"120\.0% of the GPU's peak"):
        check(Saturated(1.2), ContainerGrant(None, None, None), monkeypatch)


def test_a_gpu_that_tells_no_peak_gets_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(Saturated(1.0, peak=False), QUARTER, monkeypatch)["share_of_peak"] is None


@pytest.mark.parametrize(
    ("threads", "total", "share"),
    [(25, 132, 32 / 132), (1, 132, 8 / 132), (None, 132, None), (25, None, None), (1, 4, 1)],
)
def test_the_granted_share_is_that_of_the_sms_which_mps_gives(
    threads: int | None, total: int | None, share: float | None
) -> None:
    assert limits.granted_share(ContainerGrant(None, threads, None), total) == share


def test_a_rate_counts_the_launches_that_ended() -> None:
    launches: list[int] = []
    assert 0 < limits.rate(lambda: launches.append(1), lambda: None, 0.02) <= len(launches) / 0.02
