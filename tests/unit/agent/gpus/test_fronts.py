"""The front libraries on the node, and what a container has in the driver's place."""

import fcntl
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from gpushare.agent.gpus import devices
from gpushare.agent.gpus.driver import DriverFiles
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.agent.gpus.fronts import CLASSES, SONAMES, FrontLibraries, PreStopProgram
from gpushare.agent.gpus.view import GpuView
from gpushare.agent.settings import AgentSettings
from gpushare.api import names
from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuInfo, GpuProcesses

REAL = "/usr/lib/x86_64-linux-gnu"
DRIVER = DriverFiles(
    libraries={
        "libcuda.so": f"{REAL}/libcuda.so.580.1",
        "libcuda.so.1": f"{REAL}/libcuda.so.580.1",
        "libcuda.so.580.1": f"{REAL}/libcuda.so.580.1",
        "libcudadebugger.so.1": f"{REAL}/libcudadebugger.so.580.1",
        "libnvidia-ml.so.1": f"{REAL}/libnvidia-ml.so.580.1",
    },
    executables={},
)
FRONTS = {"libcuda.so.1": "/k/1/libcuda.so.1", "libnvidia-ml.so.1": "/k/1/libnvidia-ml.so.1"}


def image(directory: Path, content: str = "new") -> Path:
    directory.mkdir(exist_ok=True)
    for soname in SONAMES:
        (directory / soname).write_text(f"{content} {soname}")
    return directory


def in_container(edits: ContainerEdits, folder: str) -> dict[str, str]:
    """File name -> path on the node, of what is mounted in the folder."""
    prefix = f"{folder}/"
    mounts = [item for item in edits.mounts if item.container_path.startswith(prefix)]
    assert all(item.read_only for item in mounts)
    assert len({item.container_path for item in mounts}) == len(mounts)
    return {item.container_path.removeprefix(prefix): item.host_path for item in mounts}


@pytest.mark.parametrize("folder", devices.IMAGE_LIBRARY_DIRS)
def test_a_front_lies_in_the_place_of_the_drivers_library(folder: str) -> None:
    assert in_container(devices.client_edits(0, "/c", DRIVER, FRONTS), folder) == {
        "libcuda.so": FRONTS["libcuda.so.1"],
        "libcuda.so.1": FRONTS["libcuda.so.1"],
        "libnvidia-ml.so.1": FRONTS["libnvidia-ml.so.1"],
        "libcuda.so.580.1": f"{REAL}/libcuda.so.580.1",
        "libcudadebugger.so.1": f"{REAL}/libcudadebugger.so.580.1",
        "gpushare-libcuda.so.1": f"{REAL}/libcuda.so.580.1",
        "gpushare-libnvidia-ml.so.1": f"{REAL}/libnvidia-ml.so.580.1",
    }


def test_triton_links_with_the_drivers_own_library() -> None:
    """What it links has the driver's library as its dependency by the SONAME, and finds the front by that name."""
    edits = devices.client_edits(0, "/c", DRIVER, FRONTS)
    linked = in_container(edits, edits.env["TRITON_LIBCUDA_PATH"])
    assert linked["libcuda.so.1"] == linked["libcuda.so"] == f"{REAL}/libcuda.so.580.1"


def test_a_driver_without_nvml_gets_no_front_for_it() -> None:
    driver = DriverFiles({"libcuda.so.1": f"{REAL}/libcuda.so.580.1"}, {})
    mounted = in_container(devices.client_edits(0, "/c", driver, FRONTS), "/usr/lib64")
    assert sorted(mounted) == ["gpushare-libcuda.so.1", "libcuda.so.1"]


def test_a_process_may_have_all_of_the_part_that_it_sees() -> None:
    edits = devices.showing_grant(devices.client_edits(0, "/c", DRIVER, FRONTS), "GPU-1")
    assert edits.env == {**devices.CLIENT_ENV, "GPUSHARE_GPU": "GPU-1", "GPUSHARE_MEMORY_FRACTION": "1.0000"}


def test_what_is_delivered_is_what_the_image_has_and_readable_by_all(tmp_path: Path) -> None:
    paths = FrontLibraries(image(tmp_path / "image"), tmp_path / "node").delivered(shows_grant=True, has_classes=False)
    assert {soname: Path(path).read_text() for soname, path in paths.items()} == {
        soname: f"new {soname}" for soname in SONAMES
    }
    for path in map(Path, paths.values()):
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_another_version_has_another_place_and_the_old_one_stays(tmp_path: Path) -> None:
    before = FrontLibraries(image(tmp_path / "image", "old"), tmp_path / "node").delivered(
        shows_grant=True, has_classes=False
    )
    after = FrontLibraries(image(tmp_path / "image", "new"), tmp_path / "node").delivered(
        shows_grant=True, has_classes=False
    )
    assert not set(before.values()) & set(after.values())
    assert Path(before["libcuda.so.1"]).read_text() == "old libcuda.so.1"


def test_what_is_there_is_not_written_again_and_what_is_torn_or_gone_is(tmp_path: Path) -> None:
    fronts = FrontLibraries(image(tmp_path / "image"), tmp_path / "node")
    path = Path(fronts.delivered(shows_grant=True, has_classes=False)["libcuda.so.1"])
    inode = path.stat().st_ino
    assert (
        Path(
            FrontLibraries(tmp_path / "image", tmp_path / "node").delivered(shows_grant=True, has_classes=False)[
                "libcuda.so.1"
            ]
        )
        .stat()
        .st_ino
        == inode
    )
    path.write_text("")
    FrontLibraries(tmp_path / "image", tmp_path / "node").delivered(shows_grant=True, has_classes=False)
    assert path.read_text() == "new libcuda.so.1"
    path.unlink()
    assert fronts.delivered(shows_grant=True, has_classes=False)["libcuda.so.1"] == str(path)
    assert path.is_file()


def test_a_version_goes_once_no_cdi_spec_names_it(tmp_path: Path) -> None:
    before = FrontLibraries(image(tmp_path / "image", "old"), tmp_path / "node").delivered(
        shows_grant=True, has_classes=False
    )
    fronts = FrontLibraries(image(tmp_path / "image", "new"), tmp_path / "node")
    fronts.delivered(shows_grant=True, has_classes=False)
    fronts.remove_unused(f'"hostPath": "{before["libcuda.so.1"]}"')
    assert [path.name for path in (tmp_path / "node").iterdir()] == [Path(before["libcuda.so.1"]).parent.name]
    fronts.remove_unused("")
    assert list((tmp_path / "node").iterdir()) == []
    assert Path(fronts.delivered(shows_grant=True, has_classes=False)["libcuda.so.1"]).is_file()


def test_a_share_with_classes_has_the_library_that_launches_pass(tmp_path: Path) -> None:
    source = image(tmp_path / "image")
    (source / CLASSES).write_text("new classes")
    fronts = FrontLibraries(source, tmp_path / "node")
    for shows_grant in (False, True):
        paths = fronts.delivered(shows_grant=shows_grant, has_classes=True)
        assert Path(paths["libcuda.so.1"]).read_text() == "new classes"
        assert ("libnvidia-ml.so.1" in paths) is shows_grant
    assert fronts.delivered(shows_grant=False, has_classes=False) == {}
    assert Path(fronts.delivered(shows_grant=True, has_classes=False)["libcuda.so.1"]).read_text() == "new libcuda.so.1"


def test_nothing_is_removed_where_nothing_was_delivered(tmp_path: Path) -> None:
    FrontLibraries(tmp_path / "image", tmp_path / "node").remove_unused("")
    assert not (tmp_path / "node").exists()


def test_an_image_without_them_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"image/libcuda\.so\.1"):
        FrontLibraries(tmp_path / "image", tmp_path / "node").delivered(shows_grant=True, has_classes=False)
    assert not (tmp_path / "node").exists()


def test_the_pre_stop_program_is_delivered_once_to_be_run_by_everybody(tmp_path: Path) -> None:
    source, node = image(tmp_path / "image"), tmp_path / "node"
    program = PreStopProgram(source, node)
    assert program.delivered() is None
    (source / "pre-stop").write_bytes(b"program")
    path = program.delivered()
    assert path is not None
    assert (Path(path).read_bytes(), Path(path).stat().st_mode & 0o777) == (b"program", 0o755)
    Path(path).unlink()
    assert program.delivered() == path
    assert Path(path).is_file()


def test_another_version_leaves_the_one_that_containers_have(tmp_path: Path) -> None:
    """Without CDI the kubelet mounts the old one again where it starts a container anew."""
    source, node = image(tmp_path / "image"), tmp_path / "node"
    paths = set()
    for version in (b"old", b"new"):
        (source / "pre-stop").write_bytes(version)
        paths.add(PreStopProgram(source, node).delivered())
    assert {path and Path(path).read_bytes() for path in paths} == {b"old", b"new"}


def test_who_has_the_pipe_directory_has_the_pre_stop_program(tmp_path: Path) -> None:
    """So a container that lacks the program, and whose hook takes no time, is no MPS client either."""
    (image(tmp_path) / "pre-stop").write_bytes(b"program")
    settings = AgentSettings("n", "agent", kubelet_dir=tmp_path / "kubelet", fronts=tmp_path, simulation_dir="/sim")
    info = GpuInfo("GPU-0", 0, 0, "NVIDIA H200", 143155, 132, "9.0", None, False)
    view = GpuView(info, ComputeMode.DEFAULT, GpuProcesses((), ()), 1.0)
    given = devices.Devices(settings)
    for edits in (given.client(view, Path("/p")), given.allocated(view, Path("/p"))):
        mounted = {mount.container_path: mount.read_only for mount in edits.mounts}
        assert mounted[names.CLIENT_PIPE_DIR]
        assert mounted[names.PRE_STOP_PROGRAM]


def lease(path: str) -> int:
    """A descriptor with a write lease on the file. BlockingIOError: somebody has it open."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # which does nothing
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def until_read(path: str) -> None:
    """Until nobody gets a lease on it any more."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.close(lease(path))
        except BlockingIOError:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} can be leased")


def test_nobody_gets_a_lease_on_what_others_run_and_load(tmp_path: Path) -> None:
    source = image(tmp_path / "image")
    (source / "pre-stop").write_text("#!")
    program = PreStopProgram(source, tmp_path / "program")
    fronts = FrontLibraries(source, tmp_path / "node")
    path = program.delivered()
    assert path is not None
    libraries = fronts.delivered(shows_grant=True, has_classes=False)
    for delivered in (path, *libraries.values()):
        until_read(delivered)


def test_a_lease_of_before_delays_no_agent_and_does_not_come_back(tmp_path: Path) -> None:
    """The files of earlier versions, too."""
    (tmp_path / "pre-stop").write_text("now")
    version = hashlib.sha256(b"now").hexdigest()[:16]
    paths = [tmp_path / "node" / name / "pre-stop" for name in ("earlier", version)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("now")
    held = [lease(str(path)) for path in paths]
    program = PreStopProgram(tmp_path, tmp_path / "node")
    assert program.delivered() == str(paths[1])
    for descriptor in held:
        os.close(descriptor)
    for path in paths:
        until_read(str(path))
