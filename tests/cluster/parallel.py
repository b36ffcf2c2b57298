"""How the cluster tests share one machine: how many clusters, which tests first, which name for whose cluster.

Two workers for each core: a test computes for a third of its time and waits for the rest (for a Lease, a kubelet, two
idle minutes). A cluster at rest takes a tenth of a core; its start 35 s of CPU time, an installation of the chart 10 s,
and a client's pod 1.3 s from its creation to its end.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each scope in the last recorded run."""
UNKNOWN_SECONDS = 20.0
"""Of a test that is newer than the record: it is started before the many short ones."""

WORKERS_PER_CORE = 2
TOGETHER = frozenset(
    {
        "tests/cluster/clients/test_classes.py",
        "tests/cluster/clients/test_client_view.py",
        "tests/cluster/clients/test_observation.py",
        "tests/cluster/clients/test_place_views.py",
        "tests/cluster/conformance/test_accelerators.py",
        "tests/cluster/conformance/test_assignments.py",
        "tests/cluster/conformance/test_claim_faults.py",
        "tests/cluster/conformance/test_claim_lifecycle.py",
        "tests/cluster/delivery/test_claim_clients.py",
        "tests/cluster/delivery/test_claims.py",
        "tests/cluster/delivery/test_ordinary_pods.py",
        "tests/cluster/delivery/test_whole_gpus.py",
        "tests/cluster/failures/test_recovery.py",
        "tests/cluster/failures/test_standstill.py",
        "tests/cluster/rights/test_admission.py",
        "tests/cluster/rights/test_attach_gaps.py",
        "tests/cluster/rights/test_attacks.py",
        "tests/cluster/rights/test_identities.py",
        "tests/cluster/rights/policies/test_policies_of_agents.py",
        "tests/cluster/rights/policies/test_policies_of_events.py",
        "tests/cluster/rights/policies/test_policies_of_the_operator.py",
        "tests/cluster/rights/test_privileges.py",
        "tests/cluster/rights/test_shared_counts.py",
        "tests/cluster/rights/test_tenants.py",
        "tests/cluster/shares/test_changes.py",
        "tests/cluster/shares/test_definitions.py",
        "tests/cluster/shares/test_examples.py",
        "tests/cluster/shares/test_shown_memory.py",
        "tests/cluster/tools/test_chart.py",
        "tests/cluster/tools/test_trial.py",
    }
)
"""Files whose tests share something that is dear to make, or build on each other: one worker runs such a file. All
other tests are handed out one by one."""
MOST_WORKERS = 6
"""With the kernel's default of 128 inotify instances for each user, an eighth cluster does not start."""
CLUSTER_MIB = 2048
"""Memory of a cluster with gpushare and a dozen clients."""


def workers(cores: int, available_mib: int) -> int:
    """Clusters that a machine carries at once; the memory of one more stays free."""
    by_memory = available_mib // CLUSTER_MIB - 1
    return max(1, min(WORKERS_PER_CORE * cores, by_memory, MOST_WORKERS))


def available_mib(meminfo: str) -> int:
    """The available memory by the text of /proc/meminfo."""
    line = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) // 1024


def workers_here() -> int:
    return workers(os.cpu_count() or 1, available_mib(Path("/proc/meminfo").read_text()))


def cluster_name(environment: Mapping[str, str]) -> str:
    """Each worker has a cluster of its own: `test`, or `test-gw0`, `test-gw1`, … where there are several."""
    base, worker = environment.get("GPUSHARE_TEST_CLUSTER", "test"), environment.get("PYTEST_XDIST_WORKER")
    return f"{base}-{worker}" if worker else base


def scope(nodeid: str) -> str:
    """What one worker runs whole: a file of TOGETHER, or else the test alone."""
    file = nodeid.partition("::")[0]
    return file if file in TOGETHER else nodeid


def recorded(path: Path = DURATIONS) -> dict[str, float]:
    seconds: dict[str, float] = json.loads(path.read_text())
    return seconds


def longest_first(items: Iterable[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """The scopes that took longest before all others, so that none of them is started last and waited for alone.

    `seconds`: of each scope. The tests of a scope stay in their order.
    """
    return sorted(items, key=lambda item: -seconds.get(scope(item.nodeid), UNKNOWN_SECONDS))


class Recorder:
    """A pytest plugin of the run that hands out the tests: writes how long each scope took."""

    def __init__(self, path: Path = DURATIONS) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._begun: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worker = str(getattr(report, "worker_id", ""))
        if report.when == "setup" and worker not in self._begun:
            self._begun.add(worker)  # it has started the worker's cluster, whichever test it is
        else:
            self._seconds[scope(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Writes after a run without failures: others end before their time, or after it."""
        if exitstatus == 0:
            taken = {name: round(seconds) for name, seconds in self._seconds.items()}
            seconds = recorded(self._path) | taken  # of the tests that this run left out, what is known
            self._path.write_text(json.dumps(dict(sorted(seconds.items())), indent=2) + "\n")


class Scheduling(LoadScopeScheduling):
    """Hands out tests in the order of `longest_first`, and the files of TOGETHER whole."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
