"""The clients of a pass: one in another sharing mode is found before anything is measured."""

import pytest

from gpushare_workload.bench.clients.group import check_mode
from gpushare_workload.bench.plan import SharingMode
from gpushare_workload.events import WrongError
from gpushare_workload.gpus.monitor import ListedProcesses


def test_a_client_that_misses_mps_is_found_before_anything_is_measured() -> None:
    with pytest.raises(WrongError, match="mps: client PID 8 is on the GPU without MPS"):
        check_mode(SharingMode.MPS, [7, 8], ListedProcesses({7: 60}, {8: 526}))
    with pytest.raises(WrongError, match="time-slicing: client PID 7 is a client of MPS"):
        check_mode(SharingMode.TIME_SLICING, [7], ListedProcesses({7: 60}, {}))
    check_mode(SharingMode.MPS, [1], ListedProcesses({70: 60}, {80: 66}))  # a container: its PIDs are not those of NVML
