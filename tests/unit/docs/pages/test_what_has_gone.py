"""The table of what has gone: its times are those of the rules, its reasons are those that are told, and each row has a
test that takes the thing away.
"""

import re

import pytest

from gpushare.agent.reconcile.lifecycle import SILENT_SECONDS
from gpushare.api import conditions
from gpushare.controller.heartbeats.ages import LEASE_SECONDS
from gpushare.controller.webhook_certificates.keep import RECHECK_SECONDS
from gpushare.mps.supervisor.state import LONGEST_BACKOFF_SECONDS
from localcluster.paths import REPOSITORY
from tests.unit.docs.pages.test_threats import defined_in

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
SECTION = PAGE.partition('## What "not found any more" means')[2].partition("\n## ")[0]
ROWS = {row.split(" | ")[0].removeprefix("| "): row for row in SECTION.splitlines() if row.startswith("| ")}
TIMES = {
    "the agent": f"after {LEASE_SECONDS:.0f} s",
    "an MPS daemon or server": f"after {LONGEST_BACKOFF_SECONDS:.0f} s",
    "a supervisor": f"after {SILENT_SECONDS:.0f} s",
    "the webhook's certificate": f"within {RECHECK_SECONDS / 60:.0f} minutes",
}
CLUSTER, UNIT = "tests/cluster", "tests/unit"
TAKEN_AWAY = {
    "a GPU, or its UUID": [
        f"{UNIT}/planner/test_assignment.py::test_a_replaced_gpu_leaves_its_share_and_the_new_one_takes_its_place",
        f"{CLUSTER}/failures/test_faults.py::test_a_card_in_the_place_of_another_is_taken_and_the_old_uuid_goes",
    ],
    "a GPU that NVML counts and does not reach": [
        f"{CLUSTER}/failures/test_faults.py::test_a_lost_gpu_is_told_with_its_xid_and_offered_again_once_it_is_back",
        f"{CLUSTER}/failures/test_faults.py::test_a_gpu_that_nvml_does_not_describe_is_named_and_the_others_serve",
    ],
    "a Node object": [
        f"{CLUSTER}/failures/test_node_again.py::test_a_node_object_deleted_and_made_again_is_known_again"
    ],
    "the agent": [
        f"{CLUSTER}/failures/test_agent_silence.py::test_a_node_without_agent_is_unknown_within_a_minute_and_recovers"
    ],
    "a client's pod": [
        f"{CLUSTER}/clients/test_departure_causes.py::test_no_way_to_end_a_pod_through_the_api_hurts_its_neighbours"
    ],
    "a ResourceClaim": [
        f"{CLUSTER}/conformance/test_claim_faults.py::test_the_record_of_a_claim_that_is_gone_is_removed_and_holds_no_gpu"
    ],
    "a definition (CRD)": [f"{UNIT}/chart/test_gitops.py::test_what_shares_need_to_end_is_guarded_whoever_deletes_it"],
    "gpushare's namespace": [
        f"{UNIT}/chart/test_gitops.py::test_what_shares_need_to_end_is_guarded_whoever_deletes_it"
    ],
    "a tenant's namespace": [
        f"{CLUSTER}/clients/test_departure.py::test_a_pod_deleted_in_mid_kernel_leaves_its_seven_neighbours_alive"
    ],
    "an MPS daemon or server": [
        f"{CLUSTER}/failures/test_recovery.py::test_after_the_daemon_was_killed_its_clients_end_and_new_ones_run",
        f"{CLUSTER}/failures/test_recovery.py::test_after_the_server_was_killed_its_clients_end_and_new_ones_run",
    ],
    "a supervisor": [f"{UNIT}/agent/reconcile/test_readiness.py::test_readiness"],
    "the broker's socket": [
        f"{CLUSTER}/rights/test_attach_gaps.py::test_a_broker_killed_eight_times_keeps_nobody_from_mps"
    ],
    "the kubelet's socket": [f"{UNIT}/agent/kubelet/test_plugin.py::test_a_wiped_socket_is_made_again"],
    "a share's DaemonSet, or its label on a Node": [
        f"{CLUSTER}/shares/test_changes.py::test_clients_go_on_though_their_shares_label_and_daemonset_go"
    ],
    "the webhook's certificate": [
        f"{UNIT}/controller/webhook_certificates/test_authority.py::"
        "test_a_lost_serving_certificate_is_signed_again_by_the_same_authority"
    ],
}


@pytest.mark.parametrize(("gone", "time"), TIMES.items(), ids=TIMES)
def test_a_time_until_something_is_missed_is_that_of_the_rule(gone: str, time: str) -> None:
    assert time in ROWS[gone]


def test_who_is_told_is_told_by_a_condition_or_reason_that_there_is() -> None:
    known = {
        str(member)
        for kind in (conditions.ConditionType, conditions.ShareReason, conditions.DaemonReason, conditions.EventReason)
        for member in kind
    } | {conditions.AGENT_REPORTING, conditions.NVML_REACHABLE, "KubeletReachable", "GpushareCertificateExpiring"}
    told = {name for row in ROWS.values() for name in re.findall(r"`([A-Z]\w+)`", row.rsplit(" | ", 1)[-1])}
    assert told
    assert told <= known


def test_each_thing_that_goes_is_taken_away_by_a_test_that_there_is() -> None:
    assert TAKEN_AWAY.keys() == ROWS.keys() - {"what has gone", "---"}
    for tests in TAKEN_AWAY.values():
        for file, _, test in (named.partition("::") for named in tests):
            assert test in defined_in(file), f"{file}::{test}"
