"""Which GPU a pod is on, and how even pods lie on the GPUs."""

import pytest

from measurements.peers.placement import Evenness, Reading, evenness, gpu_of, pods_by_gpu

A, B = (f"gpu-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))


@pytest.mark.parametrize(
    ("devices", "gpu"),
    [
        pytest.param([f"GPU{A[3:]}::24"], A, id="a slot, or a replica of NVIDIA's plugin"),
        pytest.param([A], A, id="a device of a ResourceSlice"),
        pytest.param(["nic-0", A], A, id="beside another device"),
        pytest.param([A, f"GPU{A[3:]}::0"], A, id="one GPU twice"),
        pytest.param([], None, id="nothing yet"),
        pytest.param(["nic-0"], None, id="no GPU"),
    ],
)
def test_a_pods_gpu_is_the_uuid_in_its_devices_names(devices: list[str], gpu: str | None) -> None:
    assert gpu_of(devices) == gpu


def test_a_pod_on_two_gpus_is_told_with_both() -> None:
    with pytest.raises(ValueError, match=f"{A}, {B}"):
        gpu_of([B, A])


def reading(**pods: int) -> Reading:
    """So many pods on each of these GPUs."""
    return {f"{gpu}-{number}": gpu for gpu, count in pods.items() for number in range(count)}


@pytest.mark.parametrize(
    ("pods", "gpus", "counts"),
    [
        ({}, 3, [0, 0, 0]),
        (reading(a=1, b=2), 2, [2, 1]),
        (reading(a=2), 3, [2, 0, 0]),
    ],
)
def test_gpus_without_pods_are_counted(pods: Reading, gpus: int, counts: list[int]) -> None:
    assert pods_by_gpu(pods, gpus) == counts


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        pytest.param([reading(a=2, b=2)], Evenness(1, 0, 2, 0), id="full and even"),
        pytest.param([reading(a=2), reading(a=2, b=2)], Evenness(2, 2, 2, 0), id="one GPU was filled first"),
        pytest.param([reading(a=3), reading(a=2, b=2)], Evenness(2, 3, 3, 1), id="one had too many for a while"),
        pytest.param([reading(a=3), reading(b=3)], Evenness(2, 3, 3, 2), id="both had, one after the other"),
        pytest.param([{}], Evenness(1, 0, 0, 0), id="nobody there"),
    ],
)
def test_what_was_so_for_a_moment_counts(readings: list[Reading], expected: Evenness) -> None:
    assert evenness(readings, gpus=2, places=2) == expected
