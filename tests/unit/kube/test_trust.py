"""Authorities as clusters have them, and every client that we have of the API server: each reaches the server of its
own cluster, and no other. Each Python verifies here as those since 3.13 do by default."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, web
from kubernetes.aio.client.configuration import Configuration

from gpushare.controller.webhook_certificates.authority import (
    BUNDLE,
    CERTIFICATE,
    CERTIFICATE_KEY,
    renewed_authority,
    renewed_serving,
)
from gpushare.kube.client import NODES, Kube
from gpushare.kube.session import ApiSession, log_in, session_for_kopf
from gpushare.kubectl.api import of_a_pod
from gpushare.kubectl.failures import UnreachableError
from tests.unit.kube.answering import answering
from tests.unit.kube.certificates import DAY, HOST, Authority, authority, server_context

Ask = Callable[[], Awaitable[object]]
Client = Callable[[Path, str, int, AsyncExitStack], Awaitable[Ask]]

UNTRUSTED = (ClientConnectionError, UnreachableError, RuntimeError)
"""What a client says of a server that it does not believe; the last one is kopf's session, which is to be made anew."""


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    default = ssl.create_default_context

    def create_default_context(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = default(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_default_context)


async def of_requests(account: Path, host: str, port: int, closing: AsyncExitStack) -> Ask:
    """Operator, webhook, agent, `helm test`, uninstallation."""
    configuration = Configuration()
    await _log_in(account, host, port)(configuration)
    kube = Kube(ApiSession(configuration, "test"))
    closing.push_async_callback(kube.close)
    return partial(kube.get, NODES, "n")


async def of_kopf(account: Path, host: str, port: int, closing: AsyncExitStack) -> Ask:
    server, session = await session_for_kopf(_log_in(account, host, port))
    closing.push_async_callback(session.close)

    async def ask() -> None:
        nonlocal session
        if session.closed:  # kopf logs in again
            _, session = await session_for_kopf(_log_in(account, host, port))
            closing.push_async_callback(session.close)
        (await session.get(f"{server}/api/v1/nodes/n")).close()

    return ask


async def of_the_page(account: Path, host: str, port: int, closing: AsyncExitStack) -> Ask:
    reader = of_a_pod(host, port, account)
    return partial(asyncio.to_thread, reader.read, "/api/v1/nodes/n")


def _log_in(account: Path, host: str, port: int) -> Any:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    return partial(log_in, environ=environ, service_account=account)


@pytest.fixture(params=[of_requests, of_kopf, of_the_page])
def client(request: pytest.FixtureRequest) -> Client:
    made: Client = request.param
    return made


def of_kubeadm() -> tuple[Authority, bytes]:
    """The authority that signs the server's certificate, and the file that pods have."""
    signs = authority(identified=True)
    return signs, signs.pem


def of_eks() -> tuple[Authority, bytes]:
    signs = authority()
    return signs, signs.pem


def without_critical_constraints() -> tuple[Authority, bytes]:
    signs = authority(constraints_are_critical=False)
    return signs, signs.pem


def of_openshift() -> tuple[Authority, bytes]:
    """One authority for each name of the server, all in one file."""
    signs = authority("loadbalancer-signer", identified=True)
    rest = [authority(name, identified=True) for name in ("localhost-signer", "service-network-signer")]
    return signs, b"".join(each.pem for each in (rest[0], signs, rest[1]))


def of_a_company() -> tuple[Authority, bytes]:
    """An authority that the company's root signed; pods do not have the root."""
    signs = authority("cluster", identified=True, signed_by=authority("root", identified=True))
    return signs, signs.pem


def in_a_rotation() -> tuple[Authority, bytes]:
    """The new one beside the old one, of the same name, as kubeadm's guide to a manual rotation has it."""
    signs = authority(identified=True)
    return signs, authority(identified=True).pem + signs.pem


CLUSTERS = [of_kubeadm, of_eks, without_critical_constraints, of_openshift, of_a_company, in_a_rotation]


class Pod:
    """A pod's service account and its API server. Each request needs a connection of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (directory / "token").write_text("secret")

    def trust(self, pem: bytes) -> None:
        """The file is replaced as the kubelet does it."""
        (self._directory / "new").write_bytes(pem)
        (self._directory / "new").rename(self._directory / "ca.crt")

    def present(self, signed_by: Authority, **certificate: Any) -> None:
        self.tls.load_cert_chain(*signed_by.sign(self._directory, **certificate))

    async def answer(self, _: web.Request) -> web.StreamResponse:
        answer = web.json_response({"metadata": {}})
        answer.force_close()
        return answer


@asynccontextmanager
async def asking(
    directory: Path, client: Client, signs: Authority, trusted: bytes, host: str = HOST
) -> AsyncIterator[tuple[Pod, Ask]]:
    pod = Pod(directory)
    pod.trust(trusted)
    pod.present(signs, host=host)
    async with answering(pod.answer, pod.tls, host) as port, AsyncExitStack() as closing:
        yield pod, await client(directory, host, port, closing)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_every_client_reaches_a_service_of_either_family(tmp_path: Path, client: Client, address: str) -> None:
    signs = authority()
    async with asking(tmp_path, client, signs, signs.pem, address) as (_, ask):
        await ask()


@pytest.mark.parametrize("cluster", CLUSTERS)
async def test_every_client_trusts_the_authorities_of_clusters(
    tmp_path: Path, client: Client, cluster: Callable[[], tuple[Authority, bytes]]
) -> None:
    signs, trusted = cluster()
    async with asking(tmp_path, client, signs, trusted) as (_, ask):
        await ask()


@pytest.mark.parametrize(
    "certificate", [{"until": timedelta(0)}, {"until": 5 * DAY}, {"host": "another"}], ids=["over", "early", "name"]
)
async def test_no_client_trusts_a_certificate_that_is_not_valid(
    tmp_path: Path, client: Client, certificate: dict[str, Any]
) -> None:
    signs, trusted = of_eks()
    async with asking(tmp_path, client, signs, trusted) as (pod, ask):
        pod.present(signs, **certificate)
        with pytest.raises(UNTRUSTED):
            await ask()


async def test_every_client_follows_a_rotation_without_a_restart(tmp_path: Path, client: Client) -> None:
    """The server's certificate first, as where an administrator has the order wrong; then the pods' file."""
    before, after = authority(), authority()
    async with asking(tmp_path, client, before, before.pem) as (pod, ask):
        await ask()
        pod.present(after)
        with pytest.raises(UNTRUSTED):
            await ask()
        pod.trust(b"")  # in the midst of a write that is not the kubelet's
        with pytest.raises(UNTRUSTED):
            await ask()
        pod.trust(after.pem)
        try:
            await ask()
        except RuntimeError:  # kopf's session says that it is to be made anew
            await ask()
        pod.present(before)
        with pytest.raises(UNTRUSTED):
            await ask()


async def test_the_webhooks_own_certificate_holds_to_the_strict_rules(tmp_path: Path) -> None:
    """Whoever verifies it, however strictly: it is our own."""
    now = datetime.now(UTC)
    trusted = renewed_authority({}, {}, now)
    assert trusted is not None
    serving = renewed_serving({}, trusted, ["localhost"], now)
    assert serving is not None
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    for file, key in zip(files, (CERTIFICATE, CERTIFICATE_KEY), strict=True):
        file.write_bytes(serving[key])
    (tmp_path / "ca.crt").write_bytes(trusted[BUNDLE])
    verifying = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    assert verifying.verify_flags & ssl.VERIFY_X509_STRICT
    async with answering(Pod(tmp_path).answer, server_context(files)) as port:
        _, writer = await asyncio.open_connection("localhost", port, ssl=verifying)
        writer.close()
