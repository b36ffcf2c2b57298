"""When a GPU is given back, and how an interrupted removal goes on."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.agent.reconcile.lifecycle import StopEvidence, remove, waits_for
from gpushare.api.conditions import DaemonReason
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import DaemonState

STATE = DaemonState(uuid="GPU-1", share="a", heartbeat=99.0, reason=DaemonReason.STOPPING)
RUNS = StopEvidence(STATE, stop_age=60.0, control_alive=True, server_shown=True, now=100.0)
ENDED = replace(RUNS, state=STATE.model_copy(update={"stopped": True}))
SILENT = replace(RUNS, state=STATE.model_copy(update={"heartbeat": 10.0}))
GONE = replace(SILENT, control_alive=False, server_shown=False)


@pytest.mark.parametrize(
    ("sentence", "evidence", "expected"),
    [
        ("a supervisor at work is waited for", RUNS, "waiting for the MPS pod"),
        ("a daemon that ended is done", ENDED, None),
        ("a silent supervisor whose daemon runs needs hands", SILENT, "still runs"),
        ("a server that NVML still shows holds the GPU", replace(GONE, server_shown=True), "still runs"),
        ("nothing is left of a pod that went away", GONE, None),
        ("the last heartbeat may be old when stop was just written: the pod gets time to start",
         replace(GONE, stop_age=1.0), "waiting for the MPS pod"),
        ("without any state the MPS pod gets its time to come", replace(GONE, state=None, stop_age=14.0), "waiting"),
        ("and is not waited for for ever", replace(GONE, state=None, stop_age=15.0), None),
    ],
)  # fmt: skip
def test_what_a_release_waits_for(sentence: str, evidence: StopEvidence, expected: str | None) -> None:
    waits = waits_for(evidence)
    assert (waits is None) if expected is None else (waits is not None and expected in waits), sentence


def test_daemon_json_goes_last_so_that_an_interrupted_removal_is_found_again(tmp_path: Path) -> None:
    directory = GpuDir(tmp_path / "GPU-1")
    (directory.path / "log").mkdir(parents=True)
    directory.client.mkdir()
    for path in (directory.wanted, directory.state, directory.client_control, directory.original_mode):
        path.touch()

    def busy(_: object) -> None:
        raise OSError("device or resource busy")

    with pytest.raises(OSError, match="busy"):
        remove(directory, rmtree=busy)
    assert directory.wanted.exists()
    remove(directory)
    assert not directory.path.exists()
    remove(directory)
