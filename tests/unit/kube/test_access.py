"""The way to the API server: a pod's service account, and a kubeconfig elsewhere."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from aiohttp import ClientConnectorCertificateError, web
from aiohttp.typedefs import Handler

from gpushare.controller.webhook_certificates.authority import renewed_authority, renewed_serving
from gpushare.kube import access
from gpushare.kube.access import Access, AccessError, ServiceAccount, kubeconfig_access, service_account
from gpushare.kube.client import NODES, connect_to

SERVER = "https://10.0.0.1:443"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "ca.crt").write_text("a certificate")
    (tmp_path / "token").write_text("first\n")
    return tmp_path


def test_a_token_that_the_kubelet_replaced_is_used_within_a_minute(directory: Path) -> None:
    clock = Clock()
    account = ServiceAccount(SERVER, directory, clock)
    (directory / "token").write_text("second\n")
    assert account.token() == "first"
    clock.now = access.TOKEN_SECONDS
    assert account.token() == "second"


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_token_that_cannot_be_read_again_is_used_on(directory: Path, content: str | None) -> None:
    clock = Clock()
    account = ServiceAccount(SERVER, directory, clock)
    if content is None:
        (directory / "token").unlink()
    else:
        (directory / "token").write_text(content)
    clock.now = access.TOKEN_SECONDS
    assert account.token() == "first"


@pytest.mark.parametrize("name", ["ca.crt", "token"])
@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_pod_without_a_service_account_is_told_which_file_is_missing(
    directory: Path, name: str, content: str | None
) -> None:
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(AccessError, match=f"{name} is missing or empty"):
        ServiceAccount(SERVER, directory)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443"), ("api", "https://api:6443")],
)
def test_the_address_is_that_of_the_pods_environment(directory: Path, host: str, server: str) -> None:
    account = service_account({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, directory)
    assert account is not None
    assert account.server == server


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": ""}])
def test_outside_of_a_pod_there_is_no_service_account(environ: Mapping[str, str]) -> None:
    assert service_account(environ) is None


def test_a_port_that_is_missing_is_named() -> None:
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_PORT"):
        service_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


async def test_a_kubeconfig_gives_address_trust_and_token(tmp_path: Path) -> None:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"{SERVER}/", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    found = await kubeconfig_access(path)
    assert found.server == SERVER
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_NONE
    assert (await found.authorization()).lower() == "bearer secret"


async def test_a_kubeconfig_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="the kubeconfig cannot be used"):
        await kubeconfig_access(tmp_path / "none")


@asynccontextmanager
async def answering(answer: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server on loopback."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_every_request_carries_the_token_of_its_time() -> None:
    seen: list[str | None] = []
    tokens = iter(("Bearer 1", "Bearer 2", ""))

    async def authorization() -> str:
        return next(tokens)

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    async with answering(answer) as port:
        kube = connect_to(Access(f"http://127.0.0.1:{port}", None, authorization), "test")
        for _ in range(3):
            await kube.get(NODES, "n")
        await kube.close()
    assert seen == ["Bearer 1", "Bearer 2", None]


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_pod_trusts_a_server_of_its_own_cluster_and_no_other(directory: Path, is_ours: bool) -> None:
    now = datetime.now(UTC)
    cluster, other = renewed_authority({}, {}, now), renewed_authority({}, {}, now)
    assert cluster is not None
    assert other is not None
    serving = renewed_serving({}, cluster if is_ours else other, ["localhost"], now)
    assert serving is not None
    for name, content in {**serving, "ca.crt": cluster["ca.crt"]}.items():
        (directory / name).write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.json_response({})

    async with answering(answer, tls) as port:
        kube = connect_to(ServiceAccount(f"https://localhost:{port}", directory).access(), "test")
        with nullcontext() if is_ours else pytest.raises(ClientConnectorCertificateError):
            await kube.get(NODES, "n")
        await kube.close()
    assert asked == (["Bearer first"] if is_ours else [])
