"""The table of what has gone: its times are those of the rules, its reasons are those that are told."""

import re

import pytest

from gpushare.agent.reconcile.lifecycle import SILENT_SECONDS
from gpushare.api import conditions
from gpushare.controller.heartbeats.ages import LEASE_SECONDS
from gpushare.controller.webhook_certificates.keep import RECHECK_SECONDS
from gpushare.mps.supervisor.state import LONGEST_BACKOFF_SECONDS
from localcluster.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
SECTION = PAGE.partition('## What "not found any more" means')[2].partition("\n## ")[0]
ROWS = {row.split(" | ")[0].removeprefix("| "): row for row in SECTION.splitlines() if row.startswith("| ")}
TIMES = {
    "the agent": f"after {LEASE_SECONDS:.0f} s",
    "an MPS daemon or server": f"after {LONGEST_BACKOFF_SECONDS:.0f} s",
    "a supervisor": f"after {SILENT_SECONDS:.0f} s",
    "the webhook's certificate": f"within {RECHECK_SECONDS / 60:.0f} minutes",
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
