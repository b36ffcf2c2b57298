"""The reasons why a benchmark may not use a GPU: each names what holds it."""

from pathlib import Path
from typing import Any

import pytest

from gpushare_workload.gpus.monitor import ListedProcesses
from gpushare_workload.mps.obstacles import of_gpu, of_machine

FREE: dict[str, Any] = {
    "uuid": "GPU-1", "share_directory": None, "processes": ListedProcesses(), "names": {}, "compute_mode": "Default"
}  # fmt: skip


def test_a_free_gpu_has_nothing_in_the_way() -> None:
    assert of_gpu(**FREE) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"share_directory": Path("/run/gpushare/GPU-1")},
            "a share of gpushare holds GPU-1 (/run/gpushare/GPU-1 exists)",
        ),
        (
            {"processes": ListedProcesses({}, {42: 526}), "names": {42: "python3"}},
            "a process is on GPU-1: PID 42 (python3, 526 MiB)",
        ),
        (
            {"processes": ListedProcesses({43: 60}, {})},
            "an MPS client is on GPU-1: PID 43 (of another PID namespace, 60 MiB)",
        ),
        ({"compute_mode": "Prohibited"}, "the compute mode of GPU-1 is Prohibited"),
    ],
    ids=["share", "process", "client", "mode"],
)
def test_what_holds_a_gpu_is_named(change: dict[str, Any], words: str) -> None:
    (sentence,) = of_gpu(**{**FREE, **change})
    assert sentence.startswith(words)


@pytest.mark.parametrize(
    ("program", "socket", "exclusive", "root", "words"),
    [
        ("/bin/x", "/tmp/a/control", True, True, None),
        (None, "/tmp/a/control", False, False, "nvidia-cuda-mps-control is not on PATH"),
        ("/bin/x", f"/tmp/{'a' * 103}", False, False, "has 108 bytes, a socket's path at most 107: set TMPDIR"),
        ("/bin/x", "/tmp/a/control", True, False, "--exclusive changes the compute mode, which needs root"),
    ],
)
def test_what_this_machine_lacks_is_named(
    program: str | None, socket: str, exclusive: bool, root: bool, words: str | None
) -> None:
    reasons = of_machine(program, Path(socket), exclusive, root)
    assert (reasons == []) if words is None else (words in "; ".join(reasons))
