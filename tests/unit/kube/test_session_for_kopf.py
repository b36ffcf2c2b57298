"""kopf on the session that we give it, against an API server with TLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web

from gpushare.kube.session import log_in, session_for_kopf
from tests.unit.kube.answering import answering
from tests.unit.kube.certificates import authority, server_context

VERBS = ["get", "list", "watch", "patch"]
SHARES = {"name": "gpushares", "singularName": "gpushare", "kind": "GpuShare", "namespaced": False, "verbs": VERBS}
NAMESPACES = {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False}
VERSION = {"version": "v1alpha1"}
ANSWERS: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [NAMESPACES]},
    "/apis": {"groups": [{"name": "gpushare.dev", "versions": [VERSION], "preferredVersion": VERSION}]},
    "/apis/gpushare.dev/v1alpha1": {"resources": [SHARES]},
    "/apis/gpushare.dev/v1alpha1/gpushares": {"metadata": {"resourceVersion": "1"}, "items": []},
}


class Server:
    """Each request needs a connection of its own, and a watch ends at once."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.token = ""
        self.watched = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization"))
        if request.headers.get("Authorization") != f"bearer {self.token}":
            answer = web.json_response({"kind": "Status", "code": 401}, status=401)
        elif request.query.get("watch"):
            self.watched.set()
            answer = web.Response()
        else:
            answer = web.json_response(ANSWERS[request.path])
        answer.force_close()
        return answer

    async def watch(self) -> None:
        """Returns once kopf has begun another watch."""
        self.watched.clear()
        async with asyncio.timeout(30):
            await self.watched.wait()


@asynccontextmanager
async def kopf_runs(directory: Path, port: int) -> AsyncIterator[None]:
    registry, stop = kopf.OperatorRegistry(), asyncio.Event()
    environ = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(port)}

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        server, session = await session_for_kopf(partial(log_in, environ=environ, service_account=directory))
        return kopf.AiohttpSession(server=server, aiohttp_session=session)

    @kopf.on.event("gpushare.dev", "v1alpha1", "gpushares", registry=registry)
    async def changed(**_: Any) -> None:
        pass

    running = asyncio.create_task(kopf.operator(registry=registry, clusterwide=True, standalone=True, stop_flag=stop))
    try:
        yield
        assert not running.done(), "kopf has ended"
    finally:
        stop.set()
        await running


@pytest.mark.parametrize("late", [False, True], ids=["before the server's", "after the server's"])
async def test_kopf_goes_on_after_the_authority_has_changed(tmp_path: Path, late: bool) -> None:
    before, after, server = authority(), authority(), Server()
    (tmp_path / "ca.crt").write_bytes(before.pem)
    (tmp_path / "token").write_text("t")
    server.token = "t"
    tls = server_context(before.sign(tmp_path))
    async with answering(server.answer, tls) as port, kopf_runs(tmp_path, port):
        await server.watch()
        if late:
            tls.load_cert_chain(*after.sign(tmp_path))
            await asyncio.sleep(1.5)  # until a request of kopf's was refused
        (tmp_path / "ca.crt").write_bytes(after.pem)
        tls.load_cert_chain(*after.sign(tmp_path))
        await server.watch()


async def test_kopf_goes_on_after_its_token_was_revoked(tmp_path: Path) -> None:
    cluster, server = authority(), Server()
    (tmp_path / "ca.crt").write_bytes(cluster.pem)
    (tmp_path / "token").write_text("first")
    server.token = "first"
    async with answering(server.answer, server_context(cluster.sign(tmp_path))) as port, kopf_runs(tmp_path, port):
        await server.watch()
        (tmp_path / "token").write_text("second")
        server.token = "second"
        await server.watch()
