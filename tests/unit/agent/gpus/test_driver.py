"""The places at which the driver is found."""

from pathlib import Path

import pytest

from gpushare.agent.gpus.driver import ELF, EXECUTABLES, choose, control_program_dir, find, nvml_library, resolve

DEBIAN = "/usr/lib/x86_64-linux-gnu"
LISTING = {
    DEBIAN: {
        "libcuda.so.1": f"{DEBIAN}/libcuda.so.580.1",
        "libcuda.so.580.1": f"{DEBIAN}/libcuda.so.580.1",
        "libnvidia-ml.so.1": f"{DEBIAN}/libnvidia-ml.so.580.1",
        "libnvidia-glcore.so.580.1": f"{DEBIAN}/libnvidia-glcore.so.580.1",
    },
    "/usr/bin": {"nvidia-cuda-mps-control": "/usr/bin/nvidia-cuda-mps-control"},
    "/opt/bin": {"nvidia-cuda-mps-control": "/opt/bin/nvidia-cuda-mps-control"},
}


def test_what_compute_utility_and_video_need_is_found_and_graphics_are_not(tmp_path: Path) -> None:
    wanted = {
        "libcuda.so", "libcuda.so.1", "libcuda.so.580.1", "libcudadebugger.so.1", "libnvidia-ptxjitcompiler.so.1",
        "libnvidia-nvvm.so.4", "libnvidia-nvvm70.so.4", "libnvidia-gpucomp.so.580.1", "libnvidia-opencl.so.1",
        "libnvidia-allocator.so.1", "libnvidia-ml.so.1", "libnvidia-cfg.so.1", "libnvcuvid.so.1",
        "libnvidia-encode.so.1", "libnvidia-opticalflow.so.1", "libvdpau_nvidia.so.580.1",
    }  # fmt: skip
    folder = tmp_path / DEBIAN.lstrip("/")
    folder.mkdir(parents=True)
    for name in (*wanted, "libnvidia-glcore.so.580.1", "libGLX_nvidia.so.0", "libnvidia-rtcore.so.580.1", "libc.so.6"):
        (folder / name).touch()
    assert set(find("/", tmp_path).libraries) == wanted


def test_a_driver_container_is_named_by_its_path_on_the_host() -> None:
    driver = choose(LISTING, "/run/nvidia/driver")
    assert driver.libraries["libcuda.so.1"] == f"/run/nvidia/driver{DEBIAN}/libcuda.so.580.1"


def test_the_first_directory_of_executables_wins() -> None:
    assert choose(LISTING, "/").executables == {"nvidia-cuda-mps-control": "/usr/bin/nvidia-cuda-mps-control"}


def test_a_directory_without_libcuda_is_not_the_drivers() -> None:
    stray = {DEBIAN: {"libnvidia-ml.so.1": "/x"}, "/usr/lib64": {"libcuda.so.1": "/usr/lib64/libcuda.so.2"}}
    assert choose(stray, "/").libraries == {"libcuda.so.1": "/usr/lib64/libcuda.so.2"}


def test_without_a_driver_there_are_no_libraries() -> None:
    assert choose({}, "/").libraries == {}


@pytest.mark.parametrize(
    ("image", "root", "libraries", "programs"),
    [
        ("Debian and Ubuntu", "/", DEBIAN, "/usr/bin"),
        ("Red Hat, Amazon Linux 2023", "/", "/usr/lib64", "/usr/bin"),
        ("the GPU Operator's driver container", "/run/nvidia/driver", "/usr/lib64", "/usr/bin"),
        ("Bottlerocket", "/", "/usr/lib", "/usr/bin"),
        ("Talos", "/", "/usr/local/lib", "/usr/local/bin"),
        ("Flatcar, built on the node", "/", "/opt/nvidia/current/usr/lib64", "/opt/bin"),
        ("Container-Optimized OS", "/home/kubernetes/bin/nvidia", "/lib64", "/bin"),
    ],
)
def test_the_driver_is_found_on_every_documented_image(
    tmp_path: Path, image: str, root: str, libraries: str, programs: str
) -> None:
    """Each image has the driver where docs/node-images.md says."""
    for folder, names in ((libraries, ("libcuda.so.1", "libnvidia-ml.so.1")), (programs, EXECUTABLES)):
        (tmp_path / folder[1:]).mkdir(parents=True)
        for name in names:
            (tmp_path / folder[1:] / name).write_bytes(ELF)
    driver, prefix = find(root, tmp_path), root.rstrip("/")
    assert driver.libraries["libcuda.so.1"] == f"{prefix}{libraries}/libcuda.so.1"
    assert driver.executables == {name: f"{prefix}{programs}/{name}" for name in EXECUTABLES}
    assert nvml_library(tmp_path) == tmp_path / libraries[1:] / "libnvidia-ml.so.1"
    assert control_program_dir(tmp_path) == tmp_path / programs[1:]


def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (root / "opt/nvidia").mkdir(parents=True)
    (root / "opt/nvidia/libcuda.so.580.1").touch()
    (root / "opt/nvidia/libnvidia-ml.so.580.1").touch()
    lib = root / "usr/lib/x86_64-linux-gnu"
    (lib / "libcuda.so.1").symlink_to("/etc/alternatives/libcuda")
    (lib / "libnvidia-ml.so.1").symlink_to("../../../opt/nvidia/libnvidia-ml.so.580.1")
    (root / "etc/alternatives").mkdir(parents=True)
    (root / "etc/alternatives/libcuda").symlink_to("/opt/nvidia/libcuda.so.580.1")
    return root


def test_links_are_followed_as_the_root_itself_would(tmp_path: Path) -> None:
    driver = find("/run/nvidia/driver", _root(tmp_path))
    assert driver.libraries == {
        "libcuda.so.1": "/run/nvidia/driver/opt/nvidia/libcuda.so.580.1",
        "libnvidia-ml.so.1": "/run/nvidia/driver/opt/nvidia/libnvidia-ml.so.580.1",
    }


def test_nvml_is_found_where_this_process_can_open_it(tmp_path: Path) -> None:
    root = _root(tmp_path)
    assert nvml_library(root) == root / "opt/nvidia/libnvidia-ml.so.580.1"
    assert nvml_library(tmp_path / "empty") is None


def test_a_script_around_the_control_program_is_passed_over(tmp_path: Path) -> None:
    """Seen on a machine where /usr/bin had a shell script that named the program by its path on the host."""
    for folder, content in (("usr/bin", b"#!/bin/sh\n"), ("usr/local/nvidia/bin", b"\x7fELF\x02")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "nvidia-cuda-mps-control").write_bytes(content)
    program = "/usr/local/nvidia/bin/nvidia-cuda-mps-control"
    assert find("/", tmp_path).executables == {"nvidia-cuda-mps-control": program}
    assert control_program_dir(tmp_path) == tmp_path / "usr/local/nvidia/bin"
    (tmp_path / program.lstrip("/")).unlink()
    assert control_program_dir(tmp_path) is None


def test_a_link_cannot_leave_the_root(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to("../secret")
    (root / "loop").symlink_to("loop")
    assert resolve(root, "/out") is None
    assert resolve(root, "/loop") is None


def test_device_nodes_of_a_driver_container_are_its_own(tmp_path: Path) -> None:
    root = _root(tmp_path)
    assert find("/run/nvidia/driver", root).devices == "/dev"
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    assert find("/run/nvidia/driver", root).devices == "/run/nvidia/driver/dev"
    assert find("/", root).devices == "/dev"
