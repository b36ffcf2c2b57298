"""The gate and what it carries."""

import json
from pathlib import Path

import pytest

from gpushare.agent.gpus import cdi
from gpushare.agent.gpus.devices import (
    client_edits,
    mps_edits,
    simulated_client_edits,
    simulated_mps_edits,
    whole_edits,
)
from gpushare.agent.gpus.driver import DriverFiles
from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.api import names

PIPE = names.CLIENT_PIPE_DIR
DRIVER = DriverFiles(
    libraries={"libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1"},
    executables={"nvidia-cuda-mps-server": "/usr/bin/nvidia-cuda-mps-server"},
    tools={"nvidia-smi": "/usr/bin/nvidia-smi"},
)


@pytest.mark.parametrize(
    ("sentence", "mode", "runtime", "expected"),
    [
        ("containerd 2 has CDI on", "Auto", "containerd://2.4.2", True),
        ("so has any later one", "Auto", "containerd://10.0.0-rc.1", True),
        ("containerd 1.7 drops CDI devices without a word", "Auto", "containerd://1.7.27", False),
        ("CRI-O has CDI on", "Auto", "cri-o://1.33.0", True),
        ("what we do not know gets plain edits", "Auto", "docker://28", False),
        ("Always is always", "Always", "containerd://1.7.27", True),
        ("Never is never", "Never", "containerd://2.4.2", False),
    ],
)  # fmt: skip
def test_whether_edits_travel_by_cdi(sentence: str, mode: str, runtime: str, expected: bool) -> None:
    assert cdi.used(mode, runtime) is expected, sentence


def test_a_client_gets_one_gpu_and_no_way_to_change_a_limit() -> None:
    edits = client_edits(3, "/run/gpushare/GPU-1/client", DRIVER)
    assert [node.container_path for node in edits.devices] == ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert all(mount.read_only for mount in edits.mounts)
    assert not [mount for mount in edits.mounts if mount.host_path.endswith("pipe")]
    assert {mount.container_path for mount in edits.mounts} >= {names.CLIENT_PIPE_DIR, "/usr/lib64/libcuda.so.1"}
    folder = edits.env["TRITON_LIBCUDA_PATH"]
    assert f"{folder}/libcuda.so.1" in {mount.container_path for mount in edits.mounts}
    assert edits.env == {
        "CUDA_MPS_PIPE_DIRECTORY": names.CLIENT_PIPE_DIR,
        "NVIDIA_VISIBLE_DEVICES": "void",
        "TRITON_LIBCUDA_PATH": folder,
    }


@pytest.mark.parametrize("edits", [client_edits(3, "/c", DRIVER), whole_edits([3], DRIVER)], ids=["slot", "whole GPU"])
def test_a_container_has_nvidia_smi_and_no_program_of_mps(edits: ContainerEdits) -> None:
    programs = {mount.container_path for mount in edits.mounts if "/bin/" in mount.container_path}
    assert programs == {"/usr/bin/nvidia-smi"}


def test_an_mps_pod_gets_every_gpu_and_the_drivers_executables() -> None:
    edits = mps_edits([1, 0], DRIVER)
    assert [node.container_path.removeprefix("/dev/") for node in edits.devices] == [
        "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
    ]  # fmt: skip
    assert "/opt/gpushare/driver/bin/nvidia-cuda-mps-server" in {mount.container_path for mount in edits.mounts}


def test_in_a_simulation_the_device_node_is_a_socket_at_its_own_path() -> None:
    edits = simulated_client_edits(1, "/run/gpushare/GPU-1/client", "/run/gpushare-simulation")
    assert edits.devices == ()
    assert {mount.host_path: mount.container_path for mount in edits.mounts if mount.container_path != PIPE} == {
        "/run/gpushare-simulation/dev/nvidia1": "/run/gpushare-simulation/dev/nvidia1",
        "/run/gpushare/GPU-1/client": "/tmp/nvidia-mps",
    }
    assert simulated_mps_edits("/s").mounts[0].container_path == "/s"


@pytest.mark.parametrize("edits", [client_edits(3, "/c", DRIVER), simulated_client_edits(3, "/c", "/s")])
def test_a_client_without_variables_finds_the_same_socket(edits: ContainerEdits) -> None:
    assert {mount.container_path for mount in edits.mounts if mount.host_path == "/c"} == {PIPE, "/tmp/nvidia-mps"}


def test_the_log_is_a_bounded_directory_of_the_containers_own() -> None:
    edits = client_edits(3, "/c", DRIVER)
    mounts = cdi.spec("GPU-1", edits)["devices"][0]["containerEdits"]["mounts"]
    own = {mount["containerPath"]: mount for mount in mounts if mount.get("type") == "tmpfs"}
    assert set(own) == {"/var/log/gpushare-mps", "/var/log/nvidia-mps"}
    for mount in own.values():
        assert {"size=4m", "nr_inodes=64", "mode=1777", "nosuid", "nodev", "noexec"} <= {*mount["options"]}
        assert not {"bind", "rbind"} & {*mount["options"]}, "nothing of the host"


@pytest.mark.parametrize("edits", [client_edits(3, "/c", DRIVER), whole_edits([3], DRIVER)], ids=["slot", "whole GPU"])
def test_the_drivers_libraries_lie_where_nvidias_base_images_look_first(edits: ContainerEdits) -> None:
    libcuda = {
        mount.container_path: mount.host_path for mount in edits.mounts if "libcuda.so.1" in mount.container_path
    }
    assert libcuda["/usr/local/nvidia/lib64/libcuda.so.1"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1"


def test_the_spec_names_the_device_that_allocate_names() -> None:
    rendered = cdi.spec("GPU-1", client_edits(0, "/c", DRIVER))
    assert f"{rendered['kind']}={rendered['devices'][0]['name']}" == names.cdi_device("GPU-1")
    edits = rendered["devices"][0]["containerEdits"]
    assert {"hostPath": "/c", "containerPath": names.CLIENT_PIPE_DIR,
            "options": ["ro", "nosuid", "nodev", "bind"]} in edits["mounts"]  # fmt: skip
    assert f"CUDA_MPS_PIPE_DIRECTORY={names.CLIENT_PIPE_DIR}" in edits["env"]


def test_a_gate_opens_and_closes_by_one_file(tmp_path: Path) -> None:
    gate = cdi.Gate(tmp_path / "cdi")
    assert gate.uuids() == set()
    gate.open("GPU-1", cdi.spec("GPU-1", ContainerEdits()))
    path = tmp_path / "cdi/gpushare.dev-gpu-GPU-1.json"
    assert json.loads(path.read_text())["kind"] == names.CDI_KIND
    assert path.stat().st_mode & 0o777 == 0o644
    assert gate.uuids() == {"GPU-1"}
    gate.close("GPU-1")
    gate.close("GPU-1")
    assert list(path.parent.iterdir()) == []


def test_a_gate_that_is_open_is_not_written_again(tmp_path: Path) -> None:
    gate = cdi.Gate(tmp_path)
    gate.open("GPU-1", {"a": 1})
    before = (tmp_path / "gpushare.dev-gpu-GPU-1.json").stat().st_ino
    gate.open("GPU-1", {"a": 1})
    assert (tmp_path / "gpushare.dev-gpu-GPU-1.json").stat().st_ino == before
    gate.open("GPU-1", {"a": 2})
    assert (tmp_path / "gpushare.dev-gpu-GPU-1.json").stat().st_ino != before


def test_specs_of_others_are_not_ours_to_close(tmp_path: Path) -> None:
    (tmp_path / "nvidia.com-gpu.json").write_text("{}")
    assert cdi.Gate(tmp_path).uuids() == set()
