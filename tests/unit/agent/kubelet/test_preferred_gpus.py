"""Which whole GPUs a container gets: near each other, and such that larger requests fit later."""

import time
from dataclasses import replace
from itertools import combinations

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


def linked(infos: dict[str, GpuInfo], *groups: str) -> dict[str, GpuInfo]:
    """GPUs with NVLink from each GPU of a group to each other of it."""
    joined = dict(infos)
    for group in groups:
        for number in group:
            others = frozenset(f"G{other}" for other in group if other != number)
            joined[f"G{number}"] = replace(infos[f"G{number}"], nvlinked=others)
    return joined


EIGHT = node(0, 0, 0, 0, 1, 1, 1, 1)
SXM = linked(EIGHT, "01234567")
PAIRS = linked(EIGHT, "01", "23", "45", "67")
ODD_PAIRS = linked(EIGHT, "04", "15", "26", "37")
TWO_BOARDS = linked(EIGHT, "0246", "1357")


@pytest.mark.parametrize(
    ("sentence", "infos", "free", "must", "size", "expected"),
    [
        ("two of an empty node are on one NUMA node", EIGHT, "01234567", "", 2, "01"),
        ("two of a node where one side has two left: these", EIGHT, "0124", "", 2, "01"),
        ("one where one side has one left: that one", EIGHT, "01234", "", 1, "4"),
        ("four where only one side has four", EIGHT, "014567", "", 4, "4567"),
        ("two where each side has three: on one side", EIGHT, "012456", "", 2, "01"),
        ("five do not fit on a side: all of one and one of the other", EIGHT, "01234567", "", 5, "01234"),
        ("what the kubelet must include decides the side", EIGHT, "01234567", "6", 2, "56"),
        ("fewer than asked for where there are no more", EIGHT, "3", "", 2, "3"),
        ("more than asked for where all must be included", EIGHT, "", "67", 1, "67"),
        ("a pair that is joined", PAIRS, "1234", "", 2, "23"),
        ("a joined pair rather than one NUMA node", ODD_PAIRS, "0124", "", 2, "04"),
        ("two joined pairs rather than neighbours", PAIRS, "013467", "", 4, "0167"),
        ("what must be included brings its partner", ODD_PAIRS, "01234567", "6", 2, "26"),
        ("one that has lost its partner, so that a pair stays", PAIRS, "01267", "", 1, "2"),
        ("three: a pair, and one whose partner is taken", PAIRS, "01245", "", 3, "012"),
        ("a board that is joined rather than one NUMA node", TWO_BOARDS, "01234567", "", 4, "0246"),
        ("where all are joined, one NUMA node", SXM, "01234567", "", 4, "0123"),
        ("where all are joined, the NUMA node with fewest left", SXM, "0124", "", 2, "01"),
        ("where all are joined, what must be included decides the side", SXM, "01234567", "6", 2, "56"),
        ("without a link, as ever", EIGHT, "01234567", "", 2, "01"),
        ("fewer than asked for where there are no more", PAIRS, "3", "", 2, "3"),
        ("more than asked for where all must be included", PAIRS, "01", "67", 1, "67"),
    ],
)
def test_gpus_that_one_container_gets(
    sentence: str, infos: dict[str, GpuInfo], free: str, must: str, size: int, expected: str
) -> None:
    chosen = preferred_gpus([f"G{n}" for n in free + must], [f"G{n}" for n in must], size, infos)
    assert sorted(chosen) == [f"G{n}" for n in expected], sentence


def test_the_search_is_short_for_sixteen_gpus_and_left_out_for_more() -> None:
    infos = linked(node(*[0] * 16), "0123")
    began = time.process_time()
    assert {f"G{n}" for n in range(4)} <= set(preferred_gpus(list(infos), [], 8, infos))
    assert time.process_time() - began < 2.0
    many = linked(node(*[0] * 24), "789")
    assert preferred_gpus(list(many), [], 12, many) == [f"G{n}" for n in range(12)]


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, GpuInfo]:
    infos = node(*draw(st.lists(st.sampled_from([None, 0, 1]), min_size=1, max_size=10)))
    groups = draw(st.lists(st.integers(0, 3), min_size=len(infos), max_size=len(infos)))
    return linked(infos, *("".join(str(n) for n, group in enumerate(groups) if group == kind) for kind in range(1, 4)))


@given(nodes(), st.sets(st.integers(0, 9)), st.integers(0, 10), st.randoms())
def test_with_links_too_each_answer_is_whole_and_always_the_same(
    infos: dict[str, GpuInfo], must: set[int], size: int, order: object
) -> None:
    wanted = [f"G{index}" for index in sorted(must) if f"G{index}" in infos]
    available = list(infos)
    chosen = preferred_gpus(available, wanted, size, infos)
    assert len(set(chosen)) == len(chosen) == max(len(wanted), min(size, len(infos)))
    assert chosen[: len(wanted)] == wanted
    assert set(chosen) <= infos.keys()
    order.shuffle(available)  # type: ignore[attr-defined]
    assert preferred_gpus(available, wanted, size, infos) == chosen


@given(nodes(), st.integers(1, 6))
def test_no_other_choice_is_joined_better(infos: dict[str, GpuInfo], size: int) -> None:
    def links(uuids: tuple[str, ...]) -> int:
        return sum(other in infos[uuid].nvlinked for uuid in uuids for other in uuids)

    chosen = tuple(preferred_gpus(list(infos), [], size, infos))
    assert links(chosen) == max(links(others) for others in combinations(infos, len(chosen)))


def test_a_gpu_that_nvml_does_not_show_comes_last() -> None:
    assert preferred_gpus(["G?", "G1"], [], 1, EIGHT) == ["G1"]
    assert preferred_gpus(["G?"], [], 1, EIGHT) == ["G?"]


@given(
    st.lists(st.sampled_from([None, 0, 1]), min_size=1, max_size=16), st.sets(st.integers(0, 15)), st.integers(0, 16)
)
def test_preferred_gpus_are_free_unique_and_as_many_as_can_be(
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
