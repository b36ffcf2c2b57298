"""What NVIDIA's DRA driver is asked for, and the driver root that it is given."""

import subprocess
from pathlib import Path

import pytest

from measurements.peers.ways import dra, driver_root
from measurements.peers.ways.way import Promise

VERSION = "580.159.04"
PROGRAM = b"\x7fELF"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose driver lies below /usr/local/nvidia, with a script and an absolute link to it in /usr/bin."""
    root = tmp_path / "machine"
    libraries, programs, usual = (root / path for path in ("usr/local/nvidia/lib64", "usr/local/nvidia/bin", "usr/bin"))
    for folder in (libraries, programs, usual):
        folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml"):
        (libraries / f"{name}.so.{VERSION}").write_text(name)
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        (programs / name).write_bytes(PROGRAM)
        (programs / name).chmod(0o755)
    (usual / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-cuda-mps-control\n")
    (usual / "nvidia-smi").symlink_to("/usr/local/nvidia/bin/nvidia-smi")
    return root


@pytest.mark.parametrize("folder", [driver_root.LIBRARIES, driver_root.OTHER_NAME])
def test_the_drivers_libraries_are_where_plugin_and_daemon_look_for_them(machine: Path, folder: str) -> None:
    root = machine.parent / "driver"
    assert driver_root.make(machine, root)
    for name in ("libcuda", "libnvidia-ml"):
        assert (root / folder / f"{name}.so.{VERSION}").read_text() == name
        assert (root / folder / f"{name}.so.1").readlink() == Path(f"{name}.so.{VERSION}")


def test_mps_programs_are_programs_and_not_the_scripts_around_them(machine: Path) -> None:
    root = machine.parent / "driver"
    driver_root.make(machine, root)
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        assert (root / "usr/bin" / name).read_bytes() == PROGRAM


def test_a_driver_root_has_no_shell_so_that_nobody_changes_into_it(machine: Path) -> None:
    root = machine.parent / "driver"
    driver_root.make(machine, root)
    assert not (root / "bin").exists()
    assert not (root / "usr/bin/sh").exists()


def test_a_driver_root_is_made_once(machine: Path) -> None:
    root = machine.parent / "driver"
    driver_root.make(machine, root)
    used = root / "tmp/nvidia-mps"
    used.mkdir(parents=True)
    assert driver_root.make(machine, root)
    assert used.exists()


def test_a_machine_without_a_driver_gets_a_root_without_one(tmp_path: Path) -> None:
    assert not driver_root.make(tmp_path / "machine", tmp_path / "driver")
    assert not (tmp_path / "driver/usr/bin/nvidia-smi").exists()


def test_nvidia_smi_sets_no_compute_mode_and_does_all_else_itself(machine: Path) -> None:
    own = machine / "usr/local/nvidia/bin/nvidia-smi"
    own.unlink()
    own.write_bytes(Path("/bin/echo").read_bytes())
    own.chmod(0o755)
    root = machine.parent / "driver"
    driver_root.make(machine, root)
    told = [
        subprocess.run([root / "usr/bin/nvidia-smi", *words], capture_output=True, text=True, check=True).stdout
        for words in (["-i", "0", "-c", "EXCLUSIVE_PROCESS"], ["-L"])
    ]
    assert told == ["", "-L\n"]


def test_a_claim_asks_for_what_is_promised_to_each_client() -> None:
    [config] = dra.claim(Promise(12, 10134 << 20))["spec"]["devices"]["config"]
    sharing = config["opaque"]["parameters"]["sharing"]
    assert sharing["strategy"] == "MPS"
    assert sharing["mpsConfig"] == {
        "defaultActiveThreadPercentage": 12,
        "defaultPinnedDeviceMemoryLimit": "10134Mi",
    }


def test_the_chart_gets_the_image_by_its_name_and_tag() -> None:
    image = dra.values("localhost/nvidia-dra-driver:host-1")["image"]
    assert image == {"repository": "localhost/nvidia-dra-driver", "tag": "host-1"}
