"""The front library of clients with a class, compiled, at the broker itself: both mean the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpushare.mps.clock import boot_clock
from gpushare.mps.files import write_model
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import ClientActivity, GrantedContainer
from gpushare.process.procfs import Owner
from tests.native import build
from tests.unit.mps.broker.fake_daemon import FakeDaemon
from tests.unit.mps.broker.serving.scene import GRANT, grants, pod, serving, state, until

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")
CLIENT = """
import ctypes, sys, time
from pathlib import Path
from tests.unit.mps.broker.fake_daemon import attach
assert attach(Path(sys.argv[1]) / "control")
cuda, count, null = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint, ctypes.c_void_p()
assert cuda.cuInit(0) == 0
while True:
    grid = [count(number) for number in (5000, 1, 1, 1, 1, 1, 0)]
    assert cuda.cuLaunchKernel(ctypes.c_void_p(1), *grid, null, null, null) == 0
    assert cuda.cuStreamSynchronize(null) == 0
    time.sleep(float(sys.argv[2]))
"""
"""Kernels of 5 ms before the driver that stands in, once it has attached."""
PAUSES = {"Protected": "0.01", "BestEffort": "0"}


def started(libraries: Path, attach: Path, client_class: str) -> "subprocess.Popen[bytes]":
    paths = {"LD_LIBRARY_PATH": str(libraries), "GPUSHARE_ATTACH": str(attach), "GPUSHARE_CLASS": client_class}
    command = [sys.executable, "-c", CLIENT, str(attach), PAUSES[client_class]]
    return subprocess.Popen(command, env={**os.environ, **paths})


async def test_best_effort_gives_way_and_both_are_told(gpu: GpuDir, daemon: FakeDaemon, tmp_path: Path) -> None:
    owners = {name: Owner(f"{at}1111111-1111-1111-1111-111111111111", f"{at}" * 64) for at, name in enumerate(PAUSES)}
    grant = {name: replace(GRANT, client_class=name) for name in PAUSES}
    pods = [
        pod(owner.pod_uid, GrantedContainer(name=name, id=owner.container_id, grant=grant[name]))
        for name, owner in owners.items()
    ]
    write_model(gpu.grants, grants(*pods))
    libraries = build.container_with_classes(tmp_path / "libraries")
    places: dict[int, Owner] = {}
    clients: list[subprocess.Popen[bytes]] = []

    def told(name: str) -> ClientActivity | None:
        return next((item for item in state(gpu).activity if item.container == name), None)

    def gave_way() -> bool:
        protected, best_effort = told("Protected"), told("BestEffort")
        return bool(protected and protected.sealed and best_effort and best_effort.gave_way_to)

    async with serving(gpu, owners=lambda pid: (places.get(pid, Owner("", "")),), clock=boot_clock):
        await until(gpu.board.exists)
        try:
            for name in PAUSES:
                clients.append(started(libraries, gpu.attach, name))
                places[clients[-1].pid] = owners[name]
            await until(gave_way)
        finally:
            for client in clients:
                client.kill()
                client.wait()
        protected, best_effort = told("Protected"), told("BestEffort")
    assert protected is not None
    assert best_effort is not None
    assert (protected.fault, best_effort.fault) == ("", "")
    assert min(protected.launches, best_effort.launches) > 0
    assert best_effort.gave_way_seconds > 0
    assert [item.pid for item in best_effort.gave_way_to] == [protected.pid]
    assert protected.active_seconds > 0
