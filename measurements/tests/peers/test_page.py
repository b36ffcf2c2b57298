"""What the docs say of the peers stands in the results."""

import json
from pathlib import Path
from typing import Any

import pytest

from localcluster.errors import LocalClusterError
from measurements.peers import page, table


def result(cases: dict[str, Any], simulated: bool = False) -> dict[str, Any]:
    return {"cases": cases, "simulated": simulated, "path": "a.json"}


def rows(cases: dict[str, Any]) -> dict[str, str]:
    """The cells of one way, by their questions."""
    lines = table.table({"gpushare": result(cases)}).splitlines()[2:]
    return dict(line.strip("| ").split(" | ") for line in lines)


BURSTS = page.read(page.BURSTS, simulated_too=True)
PEER = {
    "path": "a.json",
    "truth": {"product": "NVIDIA H200", "driver": "580.159.04"},
    "environment": {"date": "2026-11-24T08:00:00Z"},
    "installed_seconds": 34.5,
    "origin": {"repository": "NVIDIA/k8s-device-plugin", "version": "0.20.0", "patched": {"image": "of this machine"}},
}


def test_the_page_says_what_the_results_say() -> None:
    written = page.text(page.read(page.PUBLISHED), BURSTS)
    assert page.COMPARISON.read_text() == written, "run `measurements/peers/run page`"


def test_the_page_links_the_results_of_every_way() -> None:
    text = page.COMPARISON.read_text()
    assert all(f"/h100/{page.file_of(way)})" in text for way in table.TITLES)


def test_the_page_says_of_a_way_its_version_and_what_differed(tmp_path: Path) -> None:
    (tmp_path / "peers-nvidia-mps.json").write_text(json.dumps(PEER | {"cases": {}, "simulated": False}))
    text = page.text(page.read(tmp_path), BURSTS)
    assert "| NVIDIA/k8s-device-plugin 0.20.0 | 2026-11-24, NVIDIA H200, driver 580.159.04 | 0 |" in text
    assert "| image: of this machine |" in text


def test_a_way_that_differs_little_has_no_column() -> None:
    head = page.COMPARISON.read_text().partition("**Throughput**")[2].splitlines()[2]
    assert [name in head for name in ("slots", "claims", "plugin, MPS", "MPS by hand")] == [True, False, True, False]


def test_a_question_that_nobody_was_asked_has_no_row() -> None:
    assert rows({}) == {}


def test_a_test_that_a_way_has_not_had_is_a_dash_beside_one_that_had_it() -> None:
    ways = {"gpushare": result({}), "nvidia-mps": result({"users": {"computed": 1, "uids": 4}})}
    assert "| – | 1 of 4 |" in table.table(ways)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(6.48, "3 of 3 died; new pod: 6.5 s"), (None, "3 of 3 died; new pod: not within 45 s")],
)
def test_a_new_pod_that_never_computed_is_told_with_the_time_it_was_given(seconds: float | None, says: str) -> None:
    new = {"seconds": seconds, "not_within_seconds": 45}
    accident = {"hurt": 3, "neighbours": 3, "new_client": new, "told": []}
    question = "an illegal access; seconds from creating the faulty pod until a new one computed"
    assert rows({"illegal-access": accident})[question] == says


def test_a_way_that_lacks_what_an_accident_needs_is_no_way_that_went_well() -> None:
    cases = {"daemon-killed": {"absent": "MPS daemon"}, "commands": {"absent": "MPS daemon"}}
    told = rows(cases)
    assert told["the MPS control daemon killed"] == "has no MPS daemon"
    assert told["the daemon's commands, from a pod without privileges"] == "has no MPS daemon"


@pytest.mark.parametrize(("free_mib", "shown"), [(9990, True), (78457, False)])
def test_a_way_whose_limits_no_client_sees_has_no_column(free_mib: int, shown: bool) -> None:
    promise = {"threads_percent": 12, "memory_bytes": 10134 << 20}
    ways = {"hami-core": result({"limits": {"as started": {"free_mib": free_mib}}}) | {"promise": promise}}
    assert ("HAMi-core" in table.table(ways)) is shown


def test_who_promises_no_memory_cannot_break_a_promise() -> None:
    outcome = {"memory_above_refused": False, "told": [], "error": None}
    ways = {"bare-mps": result({"limits": {"as started": outcome}}) | {"promise": {"memory_bytes": None}}}
    assert "| it takes 1 GiB more memory than promised | promises nothing |" in table.table(ways)


def test_a_way_that_serves_nobody_after_four_users_is_told_so() -> None:
    users = {"uids": 4, "computed": 1, "usable_after": False}
    assert rows({"users": users})["pods of four UIDs at once, computing within 25 s"].startswith("1 of 4; none at all")


def test_a_change_of_limits_says_what_a_client_sees_that_starts_after_it() -> None:
    new = {"seconds": 4.0, "sms": 32, "free_mib": 35000}
    figure = {"hurt": 0, "neighbours": 3, "new_client": new}
    says = "0 of 3 died; new pod: 4.0 s, sees 32 SMs, 35,000 MiB free"
    usual = {"as started": {"sms": 16, "free_mib": 17000}}
    told = rows(
        {"limits-changed": figure, "client-crashes": figure | {"new_client": new | {"sms": 16}}, "limits": usual}
    )
    assert told["half as many clients with twice the limits"] == says
    assert told["a client crashes in mid-kernel"] == "0 of 3 died; new pod: 4.0 s"


def test_the_gpus_memory_is_told_before_the_first_client_and_with_eight() -> None:
    starts = {"gpu_memory_mib": {"before": 500, "with_eight_clients": 4500}, "parts_with_eight_clients": {}}
    told = rows({"starts": starts})
    assert told["GPU memory in use: before the first client; with eight idle ones"] == "500 MiB; 4,500 MiB"
    assert told["its own pods with eight clients"] == "has no pods of its own"


@pytest.mark.parametrize(
    ("refused", "told", "says"),
    [
        (True, ["GpuPartGranted"], "refused; nothing told"),
        (False, ["GpuPartGranted", "MemoryAboveGrant"], "not refused; told: MemoryAboveGrant"),
    ],
)
def test_what_every_pod_is_told_is_no_answer_to_an_attempt(refused: bool, told: list[str], says: str) -> None:
    outcome = {"memory_above_refused": refused, "told": told, "error": None}
    assert rows({"limits": {"as started": outcome}})["it takes 1 GiB more memory than promised"] == says


def test_figures_of_a_rehearsal_never_reach_the_page(tmp_path: Path) -> None:
    (tmp_path / "peers-gpushare.json").write_text(json.dumps(result({}, simulated=True)))
    with pytest.raises(LocalClusterError, match="figures of a rehearsal are no results"):
        page.read(tmp_path)


def test_without_results_the_command_that_makes_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="measurements/peers/run measure"):
        page.read(tmp_path)


def test_a_refusal_is_no_obedience_of_the_daemon() -> None:
    answered = {
        "get_server_list": "57",
        "quit": "Not enough privilege to execute quit command",
        "x": 'Unknown command "x"',
    }
    figure = {"asked": 15, "answered": answered, "neighbour_hurt": True}
    told = rows({"commands": {"user": figure, "root": {"refused": "forbidden"}}})
    assert (
        told["the daemon's commands, from a pod without privileges"] == "1 of 15 obeyed with an answer; neighbour died"
    )
    assert told["… from a pod that is root"] == "the pod is not admitted"
