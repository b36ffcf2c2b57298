"""The modes that can be measured here."""

from pathlib import Path

import pytest

from gpushare_workload.mps.modes import ExistingSetup, SharingMode, chosen


def test_a_process_that_can_reach_a_daemon_cannot_measure_without_it(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    under = ExistingSetup({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert chosen(None, under) == (SharingMode.MPS, SharingMode.MPS_EQUAL_CAPS, SharingMode.STREAMS)
    with pytest.raises(ValueError, match=r"--modes time-slicing: .* possible are mps, mps-equal-caps, streams"):
        chosen([SharingMode.TIME_SLICING], under)
