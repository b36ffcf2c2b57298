"""The whole webhook: ready only when it can review, and a stop that no review notices."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest

from gpushare.controller.webhook_certificates.authority import BUNDLE, dns_names, renewed_authority, renewed_serving
from gpushare.kube.client import GPU_SHARES, NAMESPACES, SECRETS
from gpushare.webhook.serving.server import WebhookSettings, serve
from tests.unit.fake_kube import FakeKube
from tests.unit.webhook.serving.test_app import POD, review

NAMESPACE, SERVICE = "gpushare-system", dns_names("gpushare-webhook", "gpushare-system")
CLIENTS = {"perGpu": 8, "memory": {"default": "8Gi"}}


class RunningWebhook:
    """A webhook of its own process' parts, and the API server's and the kubelet's view of it."""

    def __init__(self, ports: list[int], leave_seconds: float = 60.0) -> None:
        self.kube = FakeKube()
        self.kube.put(GPU_SHARES, {"metadata": {"name": "inference"}, "spec": {"clients": CLIENTS}})
        self.kube.put(NAMESPACES, {"metadata": {"name": "shop"}})
        self.stop = asyncio.Event()
        self.port, self.probe_port = ports
        settings = WebhookSettings(NAMESPACE, "tls", self.port, self.probe_port, 0, leave_seconds)
        self.task = asyncio.create_task(serve(self.kube, settings, self.stop))  # type: ignore[arg-type]
        self._tls: ssl.SSLContext | None = None

    def issue_certificate(self) -> None:
        now = datetime.now(UTC)
        authority = renewed_authority({}, {}, now)
        assert authority is not None
        chain = renewed_serving({}, authority, SERVICE, now)
        assert chain is not None
        data = {key: base64.b64encode(value).decode() for key, value in chain.items()}
        self.kube.put(SECRETS, {"metadata": {"name": "tls", "namespace": NAMESPACE}, "data": data})
        self._tls = ssl.create_default_context(cadata=chain[BUNDLE].decode())

    async def started(self) -> None:
        """Waits until it listens and has read what the API server holds."""
        async with asyncio.timeout(10):
            while not await self._listens():  # noqa: ASYNC110 - a socket has no event for others
                await asyncio.sleep(0.01)
        await self.kube.followed(GPU_SHARES, NAMESPACES, SECRETS)

    async def _listens(self) -> bool:
        """The port that is opened last."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def probe(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.probe_port}{path}"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return answer.status, await answer.text()

    async def review(self) -> bool:
        """Tells whether a pod with a slot is admitted."""
        url = f"https://127.0.0.1:{self.port}/mutate-pods"
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, json=review(POD), ssl=self._tls or True, server_hostname=SERVICE[0]) as answer,
        ):
            allowed: bool = (await answer.json())["response"]["allowed"]
            return allowed


@pytest.fixture
async def webhook(free_ports: list[int]) -> AsyncIterator[RunningWebhook]:
    running = RunningWebhook(free_ports)
    yield running
    running.task.cancel()
    await asyncio.gather(running.task, return_exceptions=True)


async def test_it_is_alive_at_once_and_ready_with_a_certificate(webhook: RunningWebhook) -> None:
    await webhook.started()
    assert await webhook.probe("/healthz") == (200, "ok\n")
    assert await webhook.probe("/readyz") == (503, "waiting for the API server or a certificate\n")
    webhook.issue_certificate()
    await webhook.started()
    assert await webhook.probe("/readyz") == (200, "ok\n")
    assert await webhook.review()


async def test_once_stopped_it_is_not_ready_and_still_reviews(webhook: RunningWebhook) -> None:
    webhook.issue_certificate()
    await webhook.started()
    webhook.stop.set()
    assert await webhook.probe("/readyz") == (503, "the webhook is ending\n")
    assert await webhook.review()


async def test_it_ends_when_the_endpoints_have_forgotten_it(free_ports: list[int]) -> None:
    running = RunningWebhook(free_ports, leave_seconds=0.01)
    running.issue_certificate()
    await running.started()
    running.stop.set()
    async with asyncio.timeout(10):
        await running.task
    with pytest.raises(aiohttp.ClientConnectorError):
        await running.review()


async def test_a_port_that_is_taken_ends_it(free_ports: list[int]) -> None:
    async def nobody(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        """Never called."""

    async with await asyncio.start_server(nobody, port=free_ports[0]):
        running = RunningWebhook(free_ports)
        async with asyncio.timeout(10):
            with pytest.raises(BaseExceptionGroup, match="unhandled errors") as failed:
                await running.task
    assert failed.group_contains(OSError, match="(?i)address already in use")
