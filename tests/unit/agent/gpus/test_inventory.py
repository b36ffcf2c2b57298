"""What the agent sees of GPUs, also of those that go away."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.gpus.inventory import DriverVersions, Inventory
from gpushare.api.gpunode import ComputeMode


def clock() -> float:
    return 50.0


async def test_every_gpu_is_seen_with_its_mode_and_processes(nvml: Any) -> None:
    nvml.servers, nvml.modes = {"GPU-1": 7}, {"GPU-1": ComputeMode.EXCLUSIVE_PROCESS}
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    assert list(inventory.views) == ["GPU-0", "GPU-1"]
    view = inventory.views["GPU-1"]
    assert (view.mode, view.processes.compute[0].pid, view.seen_at) == (ComputeMode.EXCLUSIVE_PROCESS, 7, 50.0)


async def test_a_gpu_that_nvml_calls_lost_stays_listed_as_lost_and_the_others_go_on(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    nvml.lost.add("GPU-0")
    await inventory.poll()
    assert {uuid: view.lost for uuid, view in inventory.views.items()} == {"GPU-0": True, "GPU-1": False}


async def test_so_does_one_that_nvml_does_not_list_any_more(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    nvml.unplug(0)
    await inventory.poll()
    assert inventory.views["GPU-0"].lost
    nvml.unplug(-1)
    await inventory.poll()
    assert not inventory.views["GPU-0"].lost


async def test_a_gpu_whose_driver_call_hangs_is_lost_and_the_others_go_on(nvml: Any) -> None:
    nvml.hanging = {"GPU-0"}
    inventory = Inventory(nvml, clock, call_seconds=0.1)
    await inventory.poll()
    assert {uuid: view.lost for uuid, view in inventory.views.items()} == {"GPU-0": True, "GPU-1": False}
    nvml.release.set()


async def test_an_unloaded_driver_is_told_and_what_was_seen_last_stays_with_its_age(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    nvml.unloaded = True
    await inventory.poll()
    assert inventory.error == "Driver Not Loaded"
    assert not inventory.views["GPU-0"].lost
    assert inventory.views["GPU-0"].seen_at == 50.0


@pytest.mark.parametrize(("version", "ceiling"), [("580.159.04", 48), ("590.10", 60), ("615.1", 60), ("", 48)])
def test_the_client_ceiling_is_the_drivers(version: str, ceiling: int) -> None:
    assert DriverVersions(version, "").client_ceiling == ceiling


async def test_a_command_line_of_megabytes_is_read_as_far_as_its_name(nvml: Any, tmp_path: Path) -> None:
    """The agent took some hundred bytes for each word of it."""
    (tmp_path / "7").mkdir()
    with (tmp_path / "7" / "cmdline").open("wb") as file:
        file.write(b"/usr/bin/python\0" + b"a\0" * 3_000_000)
    nvml.servers = {"GPU-0": 7}
    inventory = Inventory(nvml, clock, tmp_path)
    tracemalloc.start()
    await inventory.poll()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert inventory.views["GPU-0"].commands == {7: "python"}
    assert peak < 5_000_000


async def test_a_command_line_that_hangs_its_reader_loses_no_gpu(nvml: Any, tmp_path: Path) -> None:
    """A program may have it in memory that it alone can fill, as of a file system in user space."""
    (tmp_path / "7").mkdir()
    os.mkfifo(tmp_path / "7" / "cmdline")
    nvml.servers = {"GPU-0": 7}
    inventory = Inventory(nvml, clock, tmp_path, call_seconds=0.2)
    await inventory.poll()
    await inventory.poll()
    assert {uuid: view.lost for uuid, view in inventory.views.items()} == {"GPU-0": False, "GPU-1": False}
    (tmp_path / "7" / "cmdline").write_bytes(b"")


@pytest.mark.parametrize(("line", "name"), [(b"/bin/a\x1b[2Jb\n\0-c\0", "a?[2Jb?"), (b"\xff\xfe\0", "??"), (b"", "")])
async def test_a_name_that_a_process_chose_can_do_nothing_to_a_terminal(
    nvml: Any, tmp_path: Path, line: bytes, name: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(line)
    nvml.servers = {"GPU-0": 7}
    inventory = Inventory(nvml, clock, tmp_path)
    await inventory.poll()
    assert inventory.views["GPU-0"].commands == {7: name}
