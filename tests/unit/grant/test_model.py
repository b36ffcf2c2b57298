"""Grants: what annotations may ask for, and the sentence that answers what they may not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.api.names import ANNOTATION_MEMORY, ANNOTATION_MEMORY_LIMIT, ANNOTATION_THREADS
from gpushare.grant.model import Grant, context_need_mib, default_grant, refusals, resolve
from gpushare.grant.refused import GrantRefused


def share(**clients: Any) -> GpuShare:
    wish = {
        "perGpu": 8,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "16Gi", "max": "16Gi"},
        **clients,
    }
    return GpuShare.model_validate({"metadata": {"name": "inference"}, "spec": {"clients": wish}})


OVERCOMMITTED = {"default": "8Gi", "max": "16Gi", "overcommit": True}


def test_a_pod_without_annotations_is_granted_the_defaults() -> None:
    assert resolve(share(), {}, "team") == Grant("inference", 25, 16384, 1)
    assert resolve(share(), {}, "team") == default_grant(share())


def test_the_share_decides_processes() -> None:
    grant = resolve(share(processes=3), {}, "team")
    assert (grant.processes, grant.process_memory_mib) == (3, 5461)


@pytest.mark.parametrize("text", ["1536Mi", "1.5Gi", "1610612736"])
def test_one_and_a_half_gibibytes_are_1536_mib_however_they_are_written(text: str) -> None:
    assert resolve(share(), {ANNOTATION_MEMORY: text}, "team").memory_mib == 1536


@pytest.mark.parametrize(("text", "percent"), [("1", 1), ("30", 30), ("50", 50)])
def test_threads_are_granted_up_to_the_ceiling(text: str, percent: int) -> None:
    assert resolve(share(), {ANNOTATION_THREADS: text}, "team").threads == percent


def test_memory_above_the_default_is_granted_where_the_share_over_commits() -> None:
    assert resolve(share(memory=OVERCOMMITTED), {ANNOTATION_MEMORY: "12Gi"}, "team").memory_mib == 12288


THREADS = "metadata.annotations[gpushare.dev/threads]: "
MEMORY = "metadata.annotations[gpushare.dev/memory]: "
WHOLE = "is not a whole percent of the GPU's SMs; write a whole number from 1 to 50"


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (ANNOTATION_THREADS, "12.5", f'{THREADS}"12.5" {WHOLE}'),
        (ANNOTATION_THREADS, "abc", f'{THREADS}"abc" {WHOLE}'),
        (ANNOTATION_THREADS, "", f'{THREADS}"" {WHOLE}'),
        (ANNOTATION_THREADS, "-1", f'{THREADS}"-1" {WHOLE}'),
        (ANNOTATION_THREADS, "25%", f'{THREADS}"25%" {WHOLE}'),
        (ANNOTATION_THREADS, "9" * 300, f'{THREADS}"{"9" * 64}…" {WHOLE}'),
        (ANNOTATION_THREADS, "0", f'{THREADS}"0" is below 1 percent; write a whole number from 1 to 50'),
        (
            ANNOTATION_THREADS,
            "80",
            f'{THREADS}"80" is above the 50 percent that GpuShare "inference" allows (spec.clients.threads.max);'
            " write a whole number from 1 to 50",
        ),
        (ANNOTATION_MEMORY, "16GB", f'{MEMORY}"16GB" is not a memory quantity; write "16Gi"'),
        (
            ANNOTATION_MEMORY,
            "-1",
            f'{MEMORY}"-1" is not a memory quantity; write it like "16Gi" or "1536Mi"',
        ),
        (ANNOTATION_MEMORY, "", f'{MEMORY}"" is not a memory quantity; write it like "16Gi" or "1536Mi"'),
        (
            ANNOTATION_MEMORY,
            "17Gi",
            f'{MEMORY}"17Gi" is above the 16Gi that GpuShare "inference" allows (spec.clients.memory.max);'
            " write at most 16Gi",
        ),
        (
            ANNOTATION_MEMORY,
            "100Mi",
            f'{MEMORY}"100Mi" is below the 218Mi that one CUDA context takes at 25 percent of the threads;'
            " write at least 218Mi",
        ),
    ],
)
def test_a_refusal_names_field_value_and_bound(annotation: str, value: str, sentence: str) -> None:
    with pytest.raises(GrantRefused) as refused:
        resolve(share(), {annotation: value}, "team")
    assert str(refused.value) == sentence


def test_a_few_bytes_above_the_bound_are_above_it() -> None:
    with pytest.raises(GrantRefused, match="is above the 16Gi"):
        resolve(share(), {ANNOTATION_MEMORY: str(16 * 2**30 + 1)}, "team")


def test_memory_above_the_default_is_refused_without_over_commit() -> None:
    with pytest.raises(GrantRefused) as refused:
        resolve(share(memory={"default": "8Gi", "max": "16Gi"}), {ANNOTATION_MEMORY: "12Gi"}, "team")
    assert str(refused.value) == (
        f'{MEMORY}"12Gi" is above the 8Gi that GpuShare "inference" sets aside for each client'
        " (spec.clients.memory.default) and it does not allow over-commit (spec.clients.memory.overcommit);"
        " write at most 8Gi"
    )


def test_every_process_needs_its_own_context() -> None:
    with pytest.raises(GrantRefused) as refused:
        resolve(share(processes=4), {ANNOTATION_MEMORY: "800Mi"}, "team")
    assert str(refused.value) == (
        f'{MEMORY}"800Mi" is below the 872Mi that 4 CUDA contexts take at 25 percent of the threads;'
        " write at least 872Mi"
    )


def test_fewer_threads_need_less_memory() -> None:
    assert resolve(share(), {ANNOTATION_MEMORY: "100Mi", ANNOTATION_THREADS: "5"}, "team").memory_mib == 100


def test_all_that_is_wrong_is_reported_at_once() -> None:
    wrong = refusals(share(), {ANNOTATION_MEMORY: "16GB", ANNOTATION_THREADS: "80"}, "team")
    assert [(refused.field, refused.value) for refused in wrong] == [
        ("metadata.annotations[gpushare.dev/threads]", "80"),
        ("metadata.annotations[gpushare.dev/memory]", "16GB"),
    ]
    assert refusals(share(), {}, "team") == []


@pytest.mark.parametrize(
    ("threads", "mib"), [(1, 60), (5, 60), (12, 146), (25, 218), (50, 348), (100, 520), (8, 97), (75, 434)]
)
def test_a_context_needs_what_was_measured(threads: int, mib: int) -> None:
    assert context_need_mib(threads) == mib


@given(st.integers(1, 99))
def test_more_threads_never_need_less(threads: int) -> None:
    assert context_need_mib(threads) <= context_need_mib(threads + 1)


@given(st.dictionaries(st.sampled_from([ANNOTATION_MEMORY, ANNOTATION_THREADS]), st.text(max_size=12)), st.booleans())
def test_whatever_is_written_a_grant_stays_within_the_share(annotations: dict[str, str], overcommit: bool) -> None:
    wish = share(memory={"default": "8Gi", "max": "16Gi", "overcommit": overcommit})
    if wrong := refusals(wish, annotations, "team"):
        with pytest.raises(GrantRefused) as refused:
            resolve(wish, annotations, "team")
        assert str(refused.value) == str(wrong[0])
    else:
        grant = resolve(wish, annotations, "team")
        assert 1 <= grant.threads <= 50
        assert context_need_mib(grant.threads) <= grant.memory_mib <= (16384 if overcommit else 8192)


LIMIT = "metadata.annotations[gpushare.dev/memory-limit]: "
LENDING = {"default": "8Gi", "limits": {"max": "24Gi"}}
LENDING_TO_ALL = {"default": "8Gi", "limits": {"default": "12Gi", "max": "24Gi"}}


@pytest.mark.parametrize(
    ("memory", "annotations", "amounts"),
    [
        pytest.param(LENDING, {}, (8192, 8192), id="who asks for nothing does not borrow"),
        pytest.param(LENDING, {"memory-limit": "20Gi"}, (8192, 20480), id="a pod asks for a limit"),
        pytest.param(LENDING, {"memory-limit": "24Gi", "memory": "4Gi"}, (4096, 24576), id="for both"),
        pytest.param(LENDING, {"memory-limit": "8Gi"}, (8192, 8192), id="for no more than is reserved"),
        pytest.param(LENDING_TO_ALL, {}, (8192, 12288), id="the share's default"),
        pytest.param(LENDING_TO_ALL, {"memory": "4Gi"}, (4096, 12288), id="with less reserved"),
        pytest.param(LENDING_TO_ALL, {"memory-limit": "8Gi"}, (8192, 8192), id="a pod that means to borrow nothing"),
        pytest.param({"default": "8Gi"}, {"memory-limit": "8Gi"}, (8192, 8192), id="nothing to borrow, none asked for"),
    ],
)
def test_a_limit_above_what_is_reserved_is_granted(
    memory: dict[str, Any], annotations: dict[str, str], amounts: tuple[int, int]
) -> None:
    grant = resolve(
        share(memory=memory), {f"gpushare.dev/{name}": value for name, value in annotations.items()}, "team"
    )
    assert (grant.memory_mib, grant.limit_mib) == amounts


@pytest.mark.parametrize(
    ("spec", "value", "sentence"),
    [
        (LENDING, "4Gi", f'{LIMIT}"4Gi" is below the 8Gi that are reserved for it; write at least 8Gi'),
        (
            LENDING,
            "25Gi",
            f'{LIMIT}"25Gi" is above the 24Gi that GpuShare "inference" allows (spec.clients.memory.limits.max);'
            " write at most 24Gi",
        ),
        (
            {"default": "8Gi"},
            "9Gi",
            f'{LIMIT}"9Gi" is above the 8Gi that are reserved, and GpuShare "inference" lets nobody borrow'
            " (spec.clients.memory.limits); remove the annotation",
        ),
        (LENDING, "16GB", f'{LIMIT}"16GB" is not a memory quantity; write "16Gi"'),
    ],
)
def test_a_limit_that_cannot_be_granted_is_refused_with_its_bound(
    spec: dict[str, Any], value: str, sentence: str
) -> None:
    with pytest.raises(GrantRefused) as refused:
        resolve(share(memory=spec), {ANNOTATION_MEMORY_LIMIT: value}, "team")
    assert str(refused.value) == sentence
    assert [str(refusal) for refusal in refusals(share(memory=spec), {ANNOTATION_MEMORY_LIMIT: value}, "team")] == [
        sentence
    ]


def test_a_slot_of_a_share_by_claims_borrows_nothing() -> None:
    slots: Any = share(memory=LENDING).wire()
    by_claims = GpuShare.model_validate(slots | {"spec": slots["spec"] | {"delivery": "ResourceClaim"}})
    assert resolve(by_claims, {}, "team").burst_mib == 0
    with pytest.raises(GrantRefused, match=r'borrow by a ResourceClaim of DeviceClass "inference.gpushare.dev"'):
        resolve(by_claims, {ANNOTATION_MEMORY_LIMIT: "9Gi"}, "team")


def test_each_process_is_capped_by_its_part_of_the_limit() -> None:
    grant = resolve(share(memory=LENDING, processes=3), {ANNOTATION_MEMORY_LIMIT: "24Gi"}, "team")
    assert (grant.process_memory_mib, grant.process_limit_mib) == (2730, 8192)
    assert share(memory=LENDING, processes=3).process_limits.memory_mib == 8192, "the daemon's own limit"
