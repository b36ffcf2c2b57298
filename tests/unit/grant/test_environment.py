"""A grant's environment: the forms that MPS was measured to understand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.client_class import ClientClass
from gpushare.grant.environment import client_environment, grant_from_environment
from gpushare.grant.model import Grant

GRANT = Grant("inference", threads=20, memory_mib=12288, processes=1)
H200_MIB = 143155


def test_the_environment_of_a_client() -> None:
    assert client_environment(GRANT, H200_MIB) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps",
        "CUDA_MPS_LOG_DIRECTORY": "/var/log/gpushare-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=12288M",
        "CUDA_MPS_CLIENT_PRIORITY": "0",
        "GPUSHARE_SHARE": "inference",
        "GPUSHARE_THREADS": "20",
        "GPUSHARE_MEMORY_BYTES": "12884901888",
        "GPUSHARE_PROCESSES": "1",
        "GPUSHARE_MEMORY_FRACTION": "0.0858",
    }


def test_each_process_is_capped_at_its_part() -> None:
    environment = client_environment(Grant("inference", 20, 1000, 3), 1000)
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=333M"
    assert environment["GPUSHARE_MEMORY_BYTES"] == str(1000 * 2**20)
    assert environment["GPUSHARE_MEMORY_FRACTION"] == "0.3330"


@pytest.mark.parametrize("unknown", [None, 0])
def test_the_fraction_is_left_out_where_no_gpu_is_known(unknown: int | None) -> None:
    assert "GPUSHARE_MEMORY_FRACTION" not in client_environment(GRANT, unknown)


def test_a_grant_above_the_gpu_is_the_whole_gpu() -> None:
    assert client_environment(GRANT, 1024)["GPUSHARE_MEMORY_FRACTION"] == "1.0000"


@given(st.integers(1, 200_000), st.integers(1, 200_000))
def test_the_fraction_never_exceeds_the_grant(memory: int, total: int) -> None:
    fraction = client_environment(Grant("s", 10, memory, 1), total)["GPUSHARE_MEMORY_FRACTION"]
    assert re.fullmatch(r"0\.[0-9]{4}|1\.0000", fraction)
    assert int(fraction.replace(".", "")) * total <= memory * 10_000


GRANTS = st.builds(
    Grant,
    share=st.just("inference"),
    threads=st.integers(1, 100),
    memory_mib=st.integers(60, 10**6),
    processes=st.integers(1, 60),
    burst_mib=st.integers(0, 1000),
    client_class=st.none() | st.sampled_from(ClientClass),
)


def test_a_class_and_its_part_are_told_and_read_back() -> None:
    grant = Grant("inference", 25, 8192, 1, client_class=ClientClass.BEST_EFFORT, threads_beside_protected=30)
    environment = client_environment(grant, None)
    assert environment["GPUSHARE_CLASS"] == "BestEffort"
    assert environment["GPUSHARE_THREADS_BESIDE_PROTECTED"] == "30"
    assert grant_from_environment(environment) == grant


@pytest.mark.parametrize(
    ("change", "read"),
    [
        pytest.param({"GPUSHARE_CLASS": "Urgent"}, (None, 0), id="a class of another release"),
        pytest.param({"GPUSHARE_CLASS": "Protected"}, (ClientClass.PROTECTED, 0), id="a part is of best effort alone"),
        pytest.param({"GPUSHARE_THREADS_BESIDE_PROTECTED": "101"}, (ClientClass.BEST_EFFORT, 0), id="no percentage"),
        pytest.param({"CUDA_MPS_CLIENT_PRIORITY": "1"}, (ClientClass.BEST_EFFORT, 30), id="a priority of before"),
    ],
)
def test_words_of_another_release_hide_no_grant(change: dict[str, str], read: tuple[ClientClass | None, int]) -> None:
    grant = Grant("inference", 25, 8192, 1, client_class=ClientClass.BEST_EFFORT, threads_beside_protected=30)
    read_back = grant_from_environment(client_environment(grant, None) | change)
    assert read_back is not None
    assert (read_back.client_class, read_back.threads_beside_protected) == read


@given(GRANTS, st.none() | st.integers(1, 200_000))
def test_a_grant_is_read_back_from_its_environment(grant: Grant, total: int | None) -> None:
    assert grant_from_environment({"PATH": "/bin", **client_environment(grant, total)}) == grant


@pytest.mark.parametrize(
    "change",
    [
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=99999M"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "garbage"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "99"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5"},
        {"GPUSHARE_PROCESSES": "0"},
        {"GPUSHARE_MEMORY_BYTES": ""},
        {"GPUSHARE_SHARE": ""},
    ],
)
def test_an_environment_that_we_did_not_write_carries_no_grant(change: dict[str, str]) -> None:
    assert grant_from_environment({**client_environment(GRANT, None), **change}) is None


@pytest.mark.parametrize(
    "never_granted",
    [Grant("s", 0, 4096, 1), Grant("s", 101, 4096, 1), Grant("s", 10, 0, 1), Grant("s", 10, 3, 4)],
)
def test_amounts_out_of_bounds_are_no_grant(never_granted: Grant) -> None:
    assert grant_from_environment(client_environment(never_granted, None)) is None


def test_an_ordinary_environment_carries_no_grant() -> None:
    assert grant_from_environment({"PATH": "/bin"}) is None


def test_mps_reads_the_limit_and_programs_are_told_both_amounts() -> None:
    grant = Grant("inference", 25, 8192, 2, burst_mib=16384)
    environment = client_environment(grant, 81920)
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=12288M"
    assert environment["GPUSHARE_MEMORY_BYTES"] == str(8192 << 20)
    assert environment["GPUSHARE_MEMORY_LIMIT_BYTES"] == str(24576 << 20)
    assert environment["GPUSHARE_MEMORY_FRACTION"] == "0.0500", "who takes all at its start borrows nothing"
    assert grant_from_environment(environment) == grant


@pytest.mark.parametrize("limit", ["", "1", "garbage", str(8191 << 20)])
def test_a_limit_that_we_did_not_write_is_no_grant(limit: str) -> None:
    environment = client_environment(Grant("inference", 25, 8192, 1, burst_mib=1024), None)
    assert grant_from_environment(environment | {"GPUSHARE_MEMORY_LIMIT_BYTES": limit}) is None
