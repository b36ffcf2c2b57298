"""What the agent says where the node's image lacks a part of the driver."""

from pathlib import Path

import pytest

from gpushare.agent.gpus.devices import Devices
from gpushare.agent.gpus.driver import CONTROL_DEVICES, ELF
from gpushare.agent.settings import AgentSettings

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"


def settings(root: Path) -> AgentSettings:
    return AgentSettings(node="n", pod="p", driver_mount=root, host_devices=root / "host-dev")


@pytest.mark.parametrize(
    ("sentence", "files", "clients", "daemons"),
    [
        ("a whole driver has no problem", ("lib64/libcuda.so.1", f"bin/{CONTROL}", f"bin/{SERVER}"), "", ""),
        ("no driver", (), "no libcuda.so.1 below the driver root /", f"no {CONTROL} and no {SERVER} below"),
        ("an image without MPS", ("lib64/libcuda.so.1",), "", f"no {CONTROL} and no {SERVER} below"),
        ("an image without the server", ("lib64/libcuda.so.1", f"bin/{CONTROL}"), "", f"no {SERVER} below"),
    ],
)
async def test_what_is_missing_is_named(
    tmp_path: Path, sentence: str, files: tuple[str, ...], clients: str, daemons: str
) -> None:
    for name in files:
        path = tmp_path / "usr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ELF)
    (tmp_path / "host-dev").mkdir()
    for name in CONTROL_DEVICES:
        (tmp_path / "host-dev" / name).touch()
    devices = Devices(settings(tmp_path))
    await devices.scan()
    for problem, expected in ((devices.problem(), clients), (devices.daemon_problem(), daemons)):
        assert problem.startswith(expected) if expected else not problem, sentence


@pytest.mark.parametrize(
    ("present", "named"),
    [
        (("nvidiactl", "nvidia-uvm", "null"), ""),
        (("nvidiactl", "nvidia0"), "no /dev/nvidia-uvm, so"),
        ((), "no /dev/nvidiactl and /dev/nvidia-uvm, so"),
    ],
)
async def test_a_device_node_that_is_absent_after_a_boot_is_named(
    tmp_path: Path, present: tuple[str, ...], named: str
) -> None:
    """Otherwise the first word of it is the CreateContainerError of a pod."""
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libcuda.so.1").write_bytes(ELF)
    (tmp_path / "host-dev").mkdir()
    for name in present:
        (tmp_path / "host-dev" / name).touch()
    devices = Devices(settings(tmp_path))
    await devices.scan()
    assert devices.problem().startswith(f"this node has {named}" if named else "")
    assert bool(devices.problem()) is bool(named)


async def test_simulated_gpus_need_no_driver() -> None:
    devices = Devices(AgentSettings(node="n", pod="p", simulation_dir="/run/gpushare-simulation"))
    assert not devices.problem()
    assert not devices.daemon_problem()
