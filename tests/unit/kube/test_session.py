"""The way to the API server: service account, kubeconfig, trust that changes, and what a request carries."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientConnectionError, ClientConnectorCertificateError, ClientTimeout, web
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from gpushare.kube.client import NODES, AccessError, Kube, KubeError
from gpushare.kube.session import ApiSession, log_in, session_for_kopf
from tests.unit.kube.answering import answering
from tests.unit.kube.certificates import Authority, authority, server_context

SERVER = "https://10.0.0.1:443"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
LIMITS = ClientTimeout(total=20)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a service account."""
    (tmp_path / "ca.crt").write_bytes(authority().pem)
    (tmp_path / "token").write_text("first")
    return tmp_path


def account(directory: Path, port: int = 443, host: str = "localhost") -> Any:
    """Logs in as the pod whose service account is there."""
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    return partial(log_in, environ=environ, service_account=directory)


async def opened(directory: Path, port: int) -> ApiSession:
    configuration, refresh = Configuration(), account(directory, port)
    await refresh(configuration)
    return ApiSession(configuration, "test", refresh)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443"), ("api", "https://api:6443")],
)
async def test_the_address_is_that_of_the_pods_environment(directory: Path, host: str, server: str) -> None:
    configuration = Configuration()
    await account(directory, 6443, host)(configuration)
    assert configuration.host == server


@pytest.mark.parametrize("name", ["ca.crt", "token"])
@pytest.mark.parametrize("content", [None, ""])
async def test_a_pod_without_a_service_account_is_an_error(directory: Path, name: str, content: str | None) -> None:
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_text(content)
    with pytest.raises(AccessError, match=f"service account in {directory} gives no access"):
        await account(directory)(Configuration())


@pytest.mark.parametrize("port", [{}, {"KUBERNETES_SERVICE_PORT": ""}])
async def test_a_pod_without_the_servers_port_is_an_error(directory: Path, port: Mapping[str, str]) -> None:
    with pytest.raises(AccessError, match="Service host/port is"):
        await log_in(
            Configuration(), environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1", **port}, service_account=directory
        )


def kubeconfig(path: Path, user: dict[str, Any]) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"{SERVER}/", "tls-server-name": "api"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "echo",
    "args": ['{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"secret"}}'],
}


@pytest.mark.parametrize("user", [{"token": "secret"}, {"exec": EXEC}], ids=["token", "exec plugin"])
async def test_a_kubeconfig_gives_address_name_and_token(tmp_path: Path, user: dict[str, Any]) -> None:
    configuration = Configuration()
    await log_in(configuration, kubeconfig(tmp_path / "kubeconfig", user), environ=POD)
    assert (configuration.host, configuration.tls_server_name) == (SERVER, "api")
    assert (await configuration.get_api_key_with_prefix("BearerToken")).lower() == "bearer secret"


async def test_a_kubeconfig_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="the kubeconfig gives no access"):
        await log_in(Configuration(), tmp_path / "none")


class Server:
    """Answers as an API server with TLS. `seen`: the Authorization of each request. `ports`: of its connections."""

    def __init__(self, signed_by: Authority, directory: Path) -> None:
        self._directory = directory
        self.tls = server_context(signed_by.sign(directory))
        self.status, self.seen = 200, list[str | None]()
        self.ports = set[int]()
        self.keeps = True
        self.asked, self.end = asyncio.Event(), asyncio.Event()

    def present(self, signed_by: Authority, **certificate: Any) -> None:
        """Presents the certificate to each new connection."""
        self.tls.load_cert_chain(*signed_by.sign(self._directory, **certificate))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers.get("Authorization"))
        assert request.transport is not None
        self.ports.add(request.transport.get_extra_info("peername")[1])
        self.asked.set()
        if request.path.endswith("/slow"):
            await self.end.wait()
        answer = web.json_response({"metadata": {}}, status=self.status)
        if not self.keeps:
            answer.force_close()
        return answer


@asynccontextmanager
async def pod_and_server(directory: Path) -> AsyncIterator[tuple[Kube, Server, Authority]]:
    """A pod in the cluster of that server and authority."""
    cluster = authority()
    (directory / "ca.crt").write_bytes(cluster.pem)
    server = Server(cluster, directory)
    async with answering(server.answer, server.tls) as port:
        kube = Kube(await opened(directory, port))
        try:
            yield kube, server, cluster
        finally:
            server.end.set()
            await kube.close()


def replace(path: Path, content: bytes) -> None:
    """Replaces a file as the kubelet does: another file takes its place."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


async def test_a_server_of_another_cluster_is_refused(directory: Path) -> None:
    async with pod_and_server(directory) as (kube, server, _):
        server.present(authority())
        with pytest.raises(ClientConnectorCertificateError):
            await kube.get(NODES, "n")
        assert server.seen == []


async def test_a_request_under_way_outlives_a_change_of_the_authority(directory: Path) -> None:
    async with pod_and_server(directory) as (kube, server, cluster):
        slow = asyncio.create_task(kube.get(NODES, "slow"))
        await server.asked.wait()
        replace(directory / "ca.crt", cluster.pem + authority().pem)
        await kube.get(NODES, "n")
        server.end.set()
        assert await slow == {"metadata": {}}
        assert len(server.ports) == 2


async def test_an_authority_that_was_written_again_is_no_change(directory: Path) -> None:
    """The kubelet does so whenever it replaces the token."""
    async with pod_and_server(directory) as (kube, server, cluster):
        await kube.get(NODES, "n")
        replace(directory / "ca.crt", cluster.pem)
        await kube.get(NODES, "n")
        assert len(server.ports) == 1


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_an_authority_that_cannot_be_read_leaves_trust_as_it_is(directory: Path, content: bytes | None) -> None:
    async with pod_and_server(directory) as (kube, server, _):
        server.keeps = False
        await kube.get(NODES, "n")
        if content is None:
            (directory / "ca.crt").unlink()
        else:
            replace(directory / "ca.crt", content)
        await kube.get(NODES, "n")
        assert len(server.ports) == 2


async def test_a_token_that_was_refused_is_read_anew_at_once(directory: Path) -> None:
    async with pod_and_server(directory) as (kube, server, _):
        replace(directory / "token", b"second")
        server.status = 401
        with pytest.raises(KubeError) as refused:
            await kube.get(NODES, "n")
        assert refused.value.status == 401
        server.status = 200
        await kube.get(NODES, "n")
        assert [token and token.lower() for token in server.seen] == ["bearer first", "bearer second"]


@pytest.mark.parametrize("content", [None, b""])
async def test_a_refused_token_that_cannot_be_read_anew_is_used_on(directory: Path, content: bytes | None) -> None:
    async with pod_and_server(directory) as (kube, server, _):
        (directory / "token").unlink()
        if content is not None:
            (directory / "token").write_bytes(content)
        server.status = 401
        for _ in range(2):
            with pytest.raises(KubeError):
                await kube.get(NODES, "n")
        assert [token and token.lower() for token in server.seen] == ["bearer first"] * 2


@pytest.mark.parametrize("content", [None, b""])
async def test_a_token_that_cannot_be_read_is_an_error_of_the_connection_to_kopf(
    directory: Path, content: bytes | None
) -> None:
    """It asks again after such an error, and ends by others."""

    async def with_a_token_of_two_minutes_ago(filled: Configuration) -> None:
        loader = InClusterConfigLoader(str(directory / "token"), str(directory / "ca.crt"), environ=POD)
        loader.load_and_set(filled)
        loader.token_expires_at -= timedelta(minutes=2)

    server, session = await session_for_kopf(with_a_token_of_two_minutes_ago)
    (directory / "token").unlink()
    if content is not None:
        (directory / "token").write_bytes(content)
    with pytest.raises(ClientConnectionError, match="no credentials"):
        await session.get(server)
    await session.close()


async def test_a_request_carries_path_query_body_and_names_as_they_are_given() -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path, dict(request.query), await request.json(), request.headers["User-Agent"]))
        return web.json_response({})

    query = {"labelSelector": "a=b,c in (d, e)", "continue": "eyJ2+/=%2F&;#ü", "limit": "5"}
    body = {"text": "ü", "none": None, "empty": {}, "list": [1, 2.5, True]}
    async with answering(answer) as port:
        session = ApiSession(Configuration(host=f"http://127.0.0.1:{port}"), "gpushare/1", None)
        await session.send("POST", NODES.path(None, "a b:1"), query, body, limits=LIMITS)
        await session.close()
    assert seen == [("/api/v1/nodes/a b:1", query, body, "gpushare/1")]
