"""What the agent sees of GPUs, also of those that go away."""

import asyncio
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.agent.gpus.inventory import Inventory
from gpushare.agent.gpus.view import DriverVersions
from gpushare.api.compute_mode import ComputeMode


def clock() -> float:
    return 50.0


async def test_every_gpu_is_seen_with_its_mode_and_processes(nvml: Any) -> None:
    nvml.servers, nvml.modes = {"GPU-1": 7}, {"GPU-1": ComputeMode.EXCLUSIVE_PROCESS}
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    assert list(inventory.views) == ["GPU-0", "GPU-1"]
    view = inventory.views["GPU-1"]
    assert (view.mode, view.processes.compute[0].pid, view.seen_at) == (ComputeMode.EXCLUSIVE_PROCESS, 7, 50.0)


async def test_a_lost_gpu_stays_listed_and_the_others_go_on(nvml: Any) -> None:
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


async def test_a_gpu_is_absent_only_by_a_list_of_nvmls_that_can_be_believed(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    assert not inventory.absent("GPU-0"), "NVML was not asked yet"
    await inventory.poll()
    assert not inventory.absent("GPU-0")
    nvml.lost.add("GPU-0")
    await inventory.poll()
    assert not inventory.absent("GPU-0"), "it is listed"
    nvml.unplug(0)
    await inventory.poll()
    assert inventory.absent("GPU-0")
    nvml.unloaded = True
    await inventory.poll()
    assert not inventory.absent("GPU-0")
    nvml.unloaded, nvml.infos = False, [replace(nvml.infos[0], uuid="")]
    await inventory.poll()
    assert not inventory.absent("GPU-0"), "it may be the one without a UUID"


async def test_another_gpu_in_the_place_of_one_that_is_gone_is_not_taken_for_it(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    nvml.infos = [replace(nvml.infos[0], uuid="GPU-9"), nvml.infos[1]]
    await inventory.poll()
    lost = {uuid: view.lost for uuid, view in inventory.views.items()}
    assert lost == {"GPU-0": True, "GPU-1": False, "GPU-9": False}
    assert inventory.error == ""


async def test_gpus_in_another_order_are_known_by_their_uuids(
    nvml: Any,
) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    first, second = nvml.infos
    nvml.infos = [replace(second, index=0, minor=0), replace(first, index=1, minor=1)]
    await inventory.poll()
    assert {uuid: (item.info.index, item.info.minor, item.lost) for uuid, item in inventory.views.items()} == {
        "GPU-0": (1, 1, False),
        "GPU-1": (0, 0, False),
    }


async def test_a_uuid_listed_twice_keeps_its_old_view_and_is_told(nvml: Any) -> None:
    now = 50.0
    inventory = Inventory(nvml, lambda: now)
    await inventory.poll()
    sound = nvml.infos
    nvml.infos, now = [sound[0], replace(sound[1], uuid="GPU-0")], 60.0
    await inventory.poll()
    assert inventory.error == "NVML lists more than one GPU as GPU-0"
    known = inventory.views["GPU-0"]
    assert (known.info.minor, known.seen_at, known.lost) == (0, 50.0, False), "its clients would get another's node"
    nvml.infos = sound
    await inventory.poll()
    assert (inventory.error, inventory.views["GPU-0"].seen_at) == ("", 60.0)


async def test_a_uuid_that_was_only_seen_twice_is_no_gpu(nvml: Any) -> None:
    nvml.infos = [nvml.infos[0], replace(nvml.infos[1], uuid="GPU-0")]
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    assert inventory.views == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"memory_mib": 0}, "GPU GPU-0 as none can be: it has no memory"),
        ({"memory_mib": -615}, "GPU GPU-0 as none can be: memory_mib is -615"),
        ({"minor": -1}, "GPU GPU-0 as none can be: minor is -1"),
        ({"sms": -2}, "GPU GPU-0 as none can be: sms is -2"),
        ({"compute_capability": "1431655765.9"}, "GPU GPU-0 as none can be: compute_capability is 1431655765.9"),
    ],
)
async def test_an_implausible_gpu_keeps_its_old_view(nvml: Any, change: dict[str, object], sentence: str) -> None:
    """No GpuNode would hold it: one such GPU would keep the whole node from being reported."""
    now = 50.0
    inventory = Inventory(nvml, lambda: now)
    await inventory.poll()
    sound = nvml.infos
    nvml.infos, now = [replace(sound[0], **change), sound[1]], 60.0
    await inventory.poll()
    assert inventory.error == f"NVML describes {sentence}"
    assert inventory.views["GPU-0"].info == sound[0]
    assert {uuid: view.seen_at for uuid, view in inventory.views.items()} == {"GPU-0": 50.0, "GPU-1": 60.0}
    nvml.infos = sound
    await inventory.poll()
    assert (inventory.error, inventory.views["GPU-0"].seen_at) == ("", 60.0)


async def test_a_gpu_that_nvml_cannot_describe_is_told_and_the_others_serve(nvml: Any) -> None:
    now = 50.0
    inventory = Inventory(nvml, lambda: now)
    await inventory.poll()
    sound = list(nvml.infos)
    nvml.infos, nvml.unreadable, now = sound[1:], ["NVML does not describe GPU 0: Unknown Error"], 60.0
    await inventory.poll()
    assert inventory.error == "NVML does not describe GPU 0: Unknown Error"
    seen = {uuid: (view.seen_at, view.lost) for uuid, view in inventory.views.items()}
    assert seen == {"GPU-0": (50.0, False), "GPU-1": (60.0, False)}, "it may be GPU-0, whose view grows old"
    assert not inventory.absent("GPU-0")
    nvml.infos, nvml.unreadable = sound[1:], []
    await inventory.poll()
    assert inventory.views["GPU-0"].lost
    assert inventory.absent("GPU-0")


@pytest.mark.parametrize("uuid", ["", "../../etc", "GPU-0\n", "GPU-" + "0" * 45])
async def test_a_uuid_that_is_none_is_no_gpu_that_anybody_could_be_given(nvml: Any, uuid: str) -> None:
    nvml.infos = [replace(nvml.infos[0], uuid=uuid), nvml.infos[1]]
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    assert list(inventory.views) == ["GPU-1"]
    assert "none can be: uuid is" in inventory.error


async def test_a_gpu_whose_driver_call_hangs_is_lost_and_the_others_go_on(nvml: Any) -> None:
    nvml.hanging = {"GPU-0"}
    inventory = Inventory(nvml, clock, call_seconds=0.1)
    await inventory.poll()
    assert {uuid: view.lost for uuid, view in inventory.views.items()} == {"GPU-0": True, "GPU-1": False}
    nvml.release.set()


async def test_a_mode_that_the_agent_sets_is_seen_at_once_as_nvml_tells_it(nvml: Any) -> None:
    inventory = Inventory(nvml, clock)
    await inventory.poll()
    await inventory.set_mode("GPU-0", ComputeMode.EXCLUSIVE_PROCESS)
    modes = {uuid: view.mode for uuid, view in inventory.views.items()}
    assert modes == {"GPU-0": ComputeMode.EXCLUSIVE_PROCESS, "GPU-1": ComputeMode.DEFAULT}


async def test_a_reading_from_before_a_mode_was_set_does_not_undo_it(
    nvml: Any,
) -> None:
    now = iter(range(1000))
    inventory = Inventory(nvml, lambda: next(now))
    nvml.hanging = {"GPU-1"}
    reading = asyncio.create_task(inventory.poll())
    await asyncio.to_thread(nvml.hangs.wait, 5)
    await inventory.set_mode("GPU-0", ComputeMode.EXCLUSIVE_PROCESS)
    nvml.release.set()
    await reading
    assert inventory.views["GPU-0"].mode is ComputeMode.EXCLUSIVE_PROCESS
    nvml.hanging.clear()
    nvml.modes.clear()
    await inventory.poll()
    assert inventory.views["GPU-0"].mode is ComputeMode.DEFAULT


async def test_an_unloaded_driver_is_told_and_old_views_stay(nvml: Any) -> None:
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
