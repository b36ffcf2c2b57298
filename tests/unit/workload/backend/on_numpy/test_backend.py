"""The backend on NumPy: the same results as the kernels, at every size."""

import numpy as np
import pytest

from gpushare_workload.backend import open_backend
from gpushare_workload.backend.filters import TAPS, ChunkFilter, taps
from gpushare_workload.backend.interface import KernelFault, UnsupportedError
from gpushare_workload.backend.work import LoadKind, Work


@pytest.mark.parametrize("kind", list(LoadKind))
@pytest.mark.parametrize("blocks", [1, 8, 33])
def test_a_result_is_that_of_every_launch(kind: LoadKind, blocks: int) -> None:
    task = open_backend("numpy").prepare(Work(kind, blocks, iterations=600, elements=700))
    assert task.wrong(0) is None
    task.launch()
    task.launch(lane=3)
    assert task.wrong(2) is None
    assert "values are wrong" in str(task.wrong(1))
    assert "values are wrong" in str(task.wrong(3))
    task.close()


def test_recorded_launches_are_right_and_their_records_bounded() -> None:
    recording = open_backend("numpy").record(Work(LoadKind.COMPUTE, 2), launches=2)
    for _ in range(3):
        recording.launch()
    first, second = recording.records()
    assert first.start < first.end <= second.start < second.end
    assert recording.wrong(3) is None
    assert recording.wrong(2) is not None


def test_a_graph_of_launches_is_as_right_as_they_are() -> None:
    task = open_backend("numpy").prepare(Work(LoadKind.TRANSFER, 2))
    replay = task.captured(3)
    assert task.wrong(3) is not None
    replay()
    assert task.wrong(3) is None


def test_spans_of_one_process_without_a_gpu_follow_each_other() -> None:
    backend = open_backend("numpy")
    task = backend.prepare(Work(LoadKind.MEMORY, 8))
    spans = backend.timed_launches([(task, 0), (task, 1)])
    assert 0 <= spans[0].start < spans[0].end <= spans[1].start < spans[1].end


@pytest.mark.parametrize("elements", [1, 300])
def test_a_chain_counts_every_kernel_launched_or_replayed(elements: int) -> None:
    chain = open_backend("numpy").chain(5, elements)
    chain.launch()
    chain.replay()
    assert chain.wrong(2) is None
    assert chain.wrong(1) is not None


@pytest.mark.parametrize(("chunks", "length", "lanes"), [(0, 4, 1), (1, 1, 3), (5, 7, 2)])
def test_chunks_come_back_with_their_iterations_added(chunks: int, length: int, lanes: int) -> None:
    data = np.arange(chunks * length, dtype=np.float32).reshape(chunks, length)
    done, _ = open_backend("numpy").process_chunks(data, 11, lanes, pinned=True)
    assert np.array_equal(done, data + 11)


@pytest.mark.parametrize(
    ("values", "normalised"),
    [([], []), ([4.0], [0.0]), ([2.0, 2.0], [0.0, 0.0]), ([1.0, 2.0, 3.0], [-1.2247449, 0.0, 1.2247449])],
    ids=["none", "one", "alike", "three"],
)
def test_normalised_values_have_mean_nought_and_deviation_one(values: list[float], normalised: list[float]) -> None:
    done = np.full(len(values), np.nan, dtype=np.float32)
    open_backend("numpy").filter_chunk(ChunkFilter.NORMALISE, [np.array(values, dtype=np.float32)], done)
    assert np.allclose(done, normalised)


@pytest.mark.parametrize("length", [1, 5, TAPS, 3 * TAPS])
def test_a_signal_is_convolved_with_zeros_before_its_first_value(length: int) -> None:
    values = np.random.default_rng(1).normal(size=length).astype(np.float32)
    done = np.empty(length, np.float32)
    open_backend("numpy").filter_chunk(ChunkFilter.SIGNAL, [values], done, pieces=2)
    coefficients = taps()
    expected = [
        sum(coefficients[tap] * values[place - tap] for tap in range(min(place + 1, TAPS))) for place in range(length)
    ]
    assert np.allclose(done, expected, atol=1e-4)


def test_a_slab_sweeps_towards_the_solution_and_leaves_its_edges_alone() -> None:
    values = np.zeros((5, 6))
    values[0] = 1.0
    slab = open_backend("numpy").slab(values, np.zeros((5, 6)), spacing=0.5)
    assert slab.sweep() == 0.25
    assert np.array_equal(slab.edges()[0], [0, 0.25, 0.25, 0.25, 0.25, 0])
    slab.set_halos(None, np.full(6, 4.0))
    assert slab.sweep() == 1.0
    assert np.array_equal(slab.values()[0], np.ones(6))


def test_a_source_term_counts_with_the_square_of_the_spacing() -> None:
    slab = open_backend("numpy").slab(np.zeros((3, 3)), np.ones((3, 3)), spacing=0.5)
    slab.sweep()
    assert slab.values()[1, 1] == 0.25 * 0.25


def test_what_needs_a_gpu_is_refused_with_the_reason() -> None:
    backend = open_backend("numpy")
    with pytest.raises(UnsupportedError, match="CUDA IPC needs a GPU"):
        backend.slab(np.zeros((3, 3)), np.zeros((3, 3)), 1.0).handle()
    with pytest.raises(UnsupportedError, match="without a GPU"):
        backend.fault(KernelFault.TRAP)


def test_an_endless_kernel_runs_until_it_is_released() -> None:
    waits: list[float] = []

    def ended(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    open_backend("numpy").run_endless(ended)
    assert len(waits) == 3
