"""Which whole GPUs a container gets: near each other, and such that larger requests fit later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.kubelet.preferred_gpus import preferred_gpus
from gpushare.nvml.types import GpuInfo


def node(*numa_nodes: int | None) -> dict[str, GpuInfo]:
    """GPUs G0, G1, … on these NUMA nodes."""
    return {
        f"G{index}": GpuInfo(f"G{index}", index, index, "NVIDIA H200", 143155, 132, "9.0", numa, False)
        for index, numa in enumerate(numa_nodes)
    }


EIGHT = node(0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("sentence", "free", "must", "size", "expected"),
    [
        ("two of an empty node are on one NUMA node", "01234567", "", 2, "01"),
        ("two of a node where one side has two left: these", "0124", "", 2, "01"),
        ("one where one side has one left: that one", "01234", "", 1, "4"),
        ("four where only one side has four", "014567", "", 4, "4567"),
        ("two where each side has three: on one side", "012456", "", 2, "01"),
        ("five do not fit on a side: all of one and one of the other", "01234567", "", 5, "01234"),
        ("what the kubelet must include decides the side", "01234567", "6", 2, "56"),
        ("fewer than asked for where there are no more", "3", "", 2, "3"),
        ("more than asked for where all must be included", "", "67", 1, "67"),
    ],
)
def test_gpus_that_one_container_gets(sentence: str, free: str, must: str, size: int, expected: str) -> None:
    chosen = preferred_gpus([f"G{n}" for n in free + must], [f"G{n}" for n in must], size, EIGHT)
    assert sorted(chosen) == [f"G{n}" for n in expected], sentence


def test_a_gpu_that_nvml_does_not_show_comes_last() -> None:
    assert preferred_gpus(["G?", "G1"], [], 1, EIGHT) == ["G1"]
    assert preferred_gpus(["G?"], [], 1, EIGHT) == ["G?"]


@given(
    st.lists(st.sampled_from([None, 0, 1]), min_size=1, max_size=16), st.sets(st.integers(0, 15)), st.integers(0, 16)
)
def test_each_answer_is_of_what_is_free_without_repetition_and_as_large_as_can_be(
    numa_nodes: list[int | None], must: set[int], size: int
) -> None:
    infos = node(*numa_nodes)
    wanted = [f"G{index}" for index in sorted(must) if f"G{index}" in infos]
    chosen = preferred_gpus(list(infos), wanted, size, infos)
    assert len(set(chosen)) == len(chosen) == max(len(wanted), min(size, len(infos)))
    assert chosen[: len(wanted)] == wanted
    assert set(chosen) <= infos.keys()


@given(st.lists(st.sampled_from([0, 1]), min_size=2, max_size=12), st.integers(1, 6))
def test_what_fits_on_one_numa_node_is_on_one(numa_nodes: list[int], size: int) -> None:
    infos = node(*numa_nodes)
    chosen = preferred_gpus(list(infos), [], size, infos)
    fits = any(numa_nodes.count(side) >= size for side in (0, 1))
    assert (len({infos[uuid].numa_node for uuid in chosen}) == 1) or not fits
