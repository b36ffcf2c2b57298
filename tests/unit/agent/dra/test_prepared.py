"""Prepared claims survive on disk, as specs that a container runtime can read."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.dra.prepared import PreparedClaim, PreparedClaims, PreparedPart, cdi_devices
from gpushare.grant.model import Grant
from tests.unit.agent.dra.objects import POD_UID, UID, pod
from tests.unit.small_disk import no_room, read_only, small_disk


def prepared(*parts: PreparedPart, uid: str = UID) -> PreparedClaim:
    return PreparedClaim(uid, "ns", "c", parts or (part(),))


def part(request: str = "gpu", threads: int = 10, memory_mib: int = 2048, processes: int = 1) -> PreparedPart:
    return PreparedPart("GPU-0", request, "n", "gpu-0", f"id-{request}", Grant("a", threads, memory_mib, processes))


@given(st.integers(1, 100), st.integers(64, 200_000), st.integers(1, 4))
def test_what_was_prepared_is_read_back(
    tmp_path_factory: object, threads: int, memory_mib: int, processes: int
) -> None:
    directory = tmp_path_factory.mktemp("cdi")  # type: ignore[attr-defined]
    claim = prepared(part("one", threads, memory_mib, processes), part("two", 1))
    PreparedClaims(directory).add(claim)
    assert PreparedClaims(directory).get(UID) == claim


def test_the_spec_names_variables_alone_and_every_one_that_mps_reads(tmp_path: Path) -> None:
    PreparedClaims(tmp_path).add(prepared())
    (file,) = tmp_path.iterdir()
    body = json.loads(file.read_text())
    (device,) = body["devices"]
    assert list(device["containerEdits"]) == ["env"]
    named = {variable.split("=")[0] for variable in device["containerEdits"]["env"]}
    assert {
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_CLIENT_PRIORITY",
    } <= named
    assert cdi_devices(UID, part())[1] == "gpushare.dev/gpu=GPU-0", "whose variables count"
    assert cdi_devices(UID, part())[0] == f"{body['kind']}={device['name']}"


def user(name: str, uid: str, started: str = "", **status: str) -> dict[str, Any]:
    made = pod(**status)
    made["metadata"] |= {"name": name, "uid": uid}
    made["status"] |= {"startTime": started} if started else {}
    return made


FIRST, SECOND = user("first", POD_UID, "2026-03-02T00:00:00Z"), user("second", "another", "2026-03-01T00:00:00Z")
DONE = user("first", POD_UID, "2026-03-02T00:00:00Z", phase="Succeeded")
LATE, UNSTARTED = user("late", "a-late", "2026-03-09T00:00:00Z"), user("unstarted", "a-first")


@pytest.mark.parametrize(
    ("pods", "served"),
    [
        pytest.param([SECOND, FIRST], "first", id="the pod that it was prepared for"),
        pytest.param([SECOND, DONE, LATE], "second", id="once that has ended, who has been there longest"),
        pytest.param([UNSTARTED, LATE], "late", id="who has started before who has not"),
        pytest.param([DONE], "first", id="one that has ended, if there is nobody else"),
    ],
)
def test_a_claim_that_several_pods_use_grants_its_part_to_one_of_them(
    tmp_path: Path, pods: list[dict[str, Any]], served: str
) -> None:
    claims = PreparedClaims(tmp_path)
    claims.add(replace(prepared(), pod_uid=POD_UID))
    for listed in (pods, pods[::-1]):
        assert set(claims.containers(listed)) == {("ns", served, "app")}
        assert set(PreparedClaims(tmp_path).containers(listed)) == {("ns", served, "app")}


def test_claims_that_cannot_be_read_are_read_later(tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    directory.touch()  # no directory: an error of its reader, as EIO is
    claims = PreparedClaims(directory)
    assert claims
    assert "Not a directory" in claims.unread
    directory.unlink()
    PreparedClaims(directory).add(prepared())
    claims.read()
    assert (claims.unread, claims.get(UID)) == ("", prepared())


def test_a_claim_whose_spec_cannot_be_read_keeps_no_other_from_being_known(tmp_path: Path) -> None:
    broken = tmp_path / "gpushare.dev-claim-broken.json"
    broken.mkdir()  # an error of its reader
    PreparedClaims(tmp_path).add(prepared())
    claims = PreparedClaims(tmp_path)
    assert claims.get(UID) == prepared()
    assert "Is a directory" in claims.unread
    broken.rmdir()
    claims.remove(UID)
    claims.read()
    assert not claims


@pytest.mark.parametrize(("starved", "error"), [(no_room, "No space left"), (read_only, "Read-only file system")])
def test_a_claim_that_cannot_be_written_is_refused_as_a_whole(
    tmp_path: Path, starved: Callable[[Path], AbstractContextManager[None]], error: str
) -> None:
    with small_disk(tmp_path):
        claims = PreparedClaims(tmp_path)
        claims.add(prepared())
        other = prepared(part("two"), uid=UID[:-1] + "f")
        with starved(tmp_path):
            with pytest.raises(OSError, match=error):
                claims.add(other)
            assert claims.get(other.uid) is None, "it would hold its part for ever"
            assert claims.get(UID) == prepared()
            assert len(list(tmp_path.glob(".*"))) == 0, "something half written stayed"
        claims.add(other)
        assert PreparedClaims(tmp_path).get(other.uid) == other


def test_a_claim_whose_spec_cannot_be_removed_stays_prepared_until_it_can(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        claims = PreparedClaims(tmp_path)
        claims.add(prepared())
        with read_only(tmp_path):
            with pytest.raises(OSError, match="Read-only file system"):
                claims.remove(UID)
            assert claims.get(UID) == prepared()
        assert claims.remove(UID)


def test_others_specs_and_what_cannot_be_read_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "gpushare.dev-claim-torn.json").write_text("{")
    (tmp_path / "gpushare.dev-claim-newer.json").write_text('{"annotations": {}, "devices": []}')
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.6.0")
    claims = PreparedClaims(tmp_path)
    assert not claims
    claims.add(prepared())
    assert claims.remove(UID)
    assert not claims.remove(UID)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert not PreparedClaims(tmp_path / "cdi")
    PreparedClaims(tmp_path / "cdi").add(prepared())
    assert PreparedClaims(tmp_path / "cdi").names_in("ns") == {"c"}
