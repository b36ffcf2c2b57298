"""Which proxy a server is reached through: what Go's HTTP clients make of the same variables, case by case."""

import asyncio
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from gpushare.kube.client import CONNECTION_ERRORS, NODES, Kube
from gpushare.kube.proxies import environment_proxy
from gpushare.kube.session import ApiSession, log_in, session_for_kopf
from tests.unit.kube.certificates import authority

PROXY = "http://proxy:3128"
SERVICE, SERVICE_V6 = "https://10.96.0.1:443", "https://[fd00::1]:443"
NAME = "https://api.example.com:6443"


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"https_proxy": PROXY}, PROXY),
        ({"HTTPS_PROXY": PROXY, "https_proxy": "http://other:1"}, PROXY),
        ({"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTP_PROXY": PROXY}, None),
        ({"ALL_PROXY": PROXY}, None),
    ],
)
def test_the_proxy_is_that_of_the_servers_scheme(variables: dict[str, str], proxy: str | None) -> None:
    assert environment_proxy(NAME, variables) == proxy


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        (SERVICE, "", False),
        (SERVICE, "10.96.0.0/12", True),
        (SERVICE, "10.96.0.1/12", True),
        (SERVICE, "192.168.0.0/16, 10.0.0.0/8", True),
        (SERVICE, "192.168.0.0/16", False),
        (SERVICE, "10.0.0.0/33", False),
        (SERVICE, "10.96.0.1", True),
        (SERVICE, "10.96.0.1:443", True),
        (SERVICE, "10.96.0.1:6443", False),
        (SERVICE, "10.96", False),
        (SERVICE, "*", True),
        (SERVICE, ".svc,.cluster.local", False),
        (SERVICE_V6, "fd00::/108", True),
        (SERVICE_V6, "fd00::1", True),
        (SERVICE_V6, "fd00:0:0::1", True),
        (SERVICE_V6, "[fd00::1]:443", True),
        (SERVICE_V6, "[fd00::1]:6443", False),
        (SERVICE_V6, "0.0.0.0/0", False),
        (NAME, "api.example.com", True),
        (NAME, "API.Example.com", True),
        (NAME, "api.example.com:6443", True),
        (NAME, "api.example.com:443", False),
        (NAME, "example.com", True),
        (NAME, ".example.com", True),
        (NAME, "*.example.com", True),
        (NAME, "ample.com", False),
        (NAME, ".api.example.com", False),
        (NAME, "10.0.0.0/8,,:6443", False),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.9:6443", "", True),
        ("https://[::1]:6443", "", True),
    ],
)
def test_no_proxy_is_understood_as_by_gos_clients(server: str, no_proxy: str, direct: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        assert environment_proxy(server, {"HTTPS_PROXY": PROXY, name: no_proxy}) == (None if direct else PROXY)


class Proxy:
    """Takes connections, notes their first line, and ends them."""

    def __init__(self) -> None:
        self.asked = list[str]()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readline()).decode().split(" HTTP")[0])
        writer.close()


@pytest.mark.parametrize(
    ("no_proxy", "asked"), [("", {"CONNECT 192.0.2.1:443"}), ("192.0.2.0/24", set())], ids=["proxy", "direct"]
)
async def test_every_session_goes_where_the_environment_says(tmp_path: Path, no_proxy: str, asked: list[str]) -> None:
    """192.0.2.1 belongs to nobody, so what is not asked of the proxy gets no answer."""
    (tmp_path / "ca.crt").write_bytes(authority().pem)
    (tmp_path / "token").write_text("secret")
    proxy = Proxy()
    async with await asyncio.start_server(proxy.take, "127.0.0.1", 0) as listening:
        environ = {
            "KUBERNETES_SERVICE_HOST": "192.0.2.1",
            "KUBERNETES_SERVICE_PORT": "443",
            "HTTPS_PROXY": f"127.0.0.1:{listening.sockets[0].getsockname()[1]}",
            "NO_PROXY": no_proxy,
        }

        async def log_in_as_pod(configuration: Configuration) -> None:
            await log_in(configuration, environ=environ, service_account=tmp_path)

        configuration = Configuration()
        await log_in_as_pod(configuration)
        kube = Kube(ApiSession(configuration, "test"))
        server, of_kopf = await session_for_kopf(log_in_as_pod)
        for ask in (kube.get(NODES, "n"), of_kopf.get(server)):
            with pytest.raises(CONNECTION_ERRORS):
                async with asyncio.timeout(1.0):
                    await ask
        await kube.close()
        await of_kopf.close()
    assert set(proxy.asked) == asked
