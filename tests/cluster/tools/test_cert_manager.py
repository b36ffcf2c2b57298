"""The chart's certificates mode CertManager, with cert-manager's own controllers and CA injector beside the cluster.

Opt-in (`make cert-manager-test`), because building them takes minutes that say little new on every run.
"""

import subprocess
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcluster.cluster import cluster
from localcluster.paths import cache_root
from localcluster.programs.build import build_cert_manager
from localcluster.stack import embedded, install
from tests.cluster import conftest
from tests.cluster.harness import Harness, holds_for, wait_until

CLUSTER = f"{conftest.CLUSTER}-certs"
SECRET = "gpushare-webhook-tls"
MODE = "--set=certificates.mode=CertManager"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest) -> Iterator[Harness]:
    if not request.config.getoption("--cert-manager"):
        pytest.skip("builds cert-manager: make cert-manager-test")
    built = build_cert_manager(cache_root())
    stack = embedded(CLUSTER)
    try:
        harness = Harness(stack)
        harness.kubectl("apply", "--server-side", "-f", str(built / "crds"))
        harness.kubectl("wait", "--for=condition=Established", "crd/certificates.cert-manager.io")
        with running(built / "certmanager", stack.environment, harness.layout.logs / "certmanager.log"):
            install(stack, MODE)
            yield harness
    finally:
        cluster.down(CLUSTER)


@contextmanager
def running(program: Path, environment: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen([program], env=dict(environment), stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait(timeout=10)


def authority(harness: Harness) -> bytes:
    """The CA certificate of the webhook's Secret, as PEM."""
    secret = harness.system.get("secret", SECRET)
    return b64decode(secret["data"]["ca.crt"])


def injected(harness: Harness) -> set[bytes]:
    """What the API server trusts the webhook by."""
    configurations = [harness.kubectl.get(kind, "gpushare-webhook") for kind in CONFIGURATIONS]
    return {
        b64decode(hook["clientConfig"].get("caBundle", ""))
        for configuration in configurations
        for hook in configuration["webhooks"]
    }


def test_a_client_is_admitted_and_limited_with_cert_managers_certificate(fresh: Harness) -> None:
    wait_until("it is trusted", lambda: injected(fresh) == {authority(fresh)}, 30, lambda: log_of(fresh))
    assert fresh.system.find("secret", "gpushare-webhook-ca") is None, "the operator must leave certificates alone"
    with fresh.share("certified", per_node=1), fresh.namespace() as tenant:
        tenant.start(tenant.pod("client", "certified", "limits"))
        assert tenant.wait_event("client", "limits")["problems"] == []


def test_renewals_and_upgrades_of_the_chart_leave_each_other_alone(fresh: Harness) -> None:
    wait_until("it is trusted", lambda: trusted(fresh), 30, lambda: log_of(fresh))
    # From this upgrade on Helm, too, is an owner of caBundle, with the value that it found.
    install(fresh.stack, MODE)
    before = authority(fresh)
    fresh.system.delete("secret", SECRET)
    wait_until("it is renewed", lambda: authority(fresh) != before, 60, lambda: log_of(fresh))
    wait_until("the new one is trusted", lambda: trusted(fresh), 30, lambda: log_of(fresh))
    install(fresh.stack, MODE)
    assert trusted(fresh), "the upgrade took the new one away"
    written = versions(fresh)
    holds_for("somebody goes on writing caBundle", lambda: versions(fresh) == written, 10)


def trusted(harness: Harness) -> bool:
    """Tells whether every webhook's bundle has the authority of now; cert-manager leaves older ones beside it."""
    return all(authority(harness).strip() in bundle for bundle in injected(harness))


def versions(harness: Harness) -> list[str]:
    """Versions of the webhook configurations: another one for every write."""
    configurations = [harness.kubectl.get(kind, "gpushare-webhook") for kind in CONFIGURATIONS]
    return [configuration["metadata"]["resourceVersion"] for configuration in configurations]


def log_of(harness: Harness) -> str:
    return (harness.layout.logs / "certmanager.log").read_text()[-3000:]
