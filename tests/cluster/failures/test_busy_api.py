"""An API server that refuses every tenth request of ours: all is as it would be without, and nobody asks too early."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.stack import install
from tests.cluster.busy_api import BusyApi, busy_api
from tests.cluster.harness import Harness
from tests.faults.campaign import Life
from tests.faults.points import Recorder

PARTS = ("operator", "webhook", "agent")
SCENES = (
    "a share with clients",
    "other limits under a client",
    "a departure in mid-kernel",
    "claims of different sizes",
    "a GPU handed on",
    "a fault",
)
"""Those of the campaign of ends that install nothing themselves."""


@pytest.fixture
def busy(harness: Harness) -> Iterator[BusyApi]:
    """A proxy that plays a busy API server stands between operator, webhook and agent and theirs; they come up
    through it."""
    with busy_api(harness.layout) as (proxy, port):
        address = {"KUBERNETES_SERVICE_HOST": harness.layout.network.host_ip, "KUBERNETES_SERVICE_PORT": str(port)}
        env = json.dumps([{"name": name, "value": value} for name, value in address.items()])
        install(harness.stack, *(f"--set-json={part}.extraEnv={env}" for part in PARTS))
        yield proxy
        install(harness.stack)


@pytest.mark.long
def test_a_life_with_every_tenth_request_refused_ends_as_one_without(
    harness: Harness, busy: BusyApi, tmp_path: Path
) -> None:
    for scene in SCENES:
        Life(harness, Recorder(tmp_path)).live(scene)
    seen = busy.seen
    assert set(seen.requests) >= {f"gpushare-{part}" for part in PARTS}, seen.requests
    for status in (429, 500):
        refused = {part for part, refusal in seen.refused if refusal == status}
        assert refused >= {"gpushare-operator", "gpushare-agent"}, seen.refused
    assert seen.hasty == [], seen.hasty
    pods = [pod for part in PARTS for pod in harness.pods_of(part)]
    assert [status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"]] == [0] * len(pods)
