"""The session with the API server, on the library `kubernetes`: its configuration, credentials, TLS and requests.

The library finds server, trust and credentials: a pod's service account, whose token it reads again each minute, or a
kubeconfig with all its forms. This module adds what a process that runs for months on 1,000 nodes needs beyond that:
- A certificate authority that changes. The library reads it once. Here its file is looked at before each request, and
  another content opens new connections; those that exist end by themselves.
- Credentials that are refused are read anew, for a token that was replaced within the minute, and for exec plugins,
  which the library asks once.
- Keepalive on each connection, and one look for a proxy: aiohttp looks anew for each request and reads ~/.netrc, too,
  which costs two threads and an eighth of the operator's CPU time, and understands NO_PROXY as Python does, which is
  not as the rest of a cluster does.

None of the library's generated classes is imported: they take 43 MiB of a process.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from gpushare.kube.answers import read_error
from gpushare.kube.proxies import environment_proxy
from gpushare.kube.resources import KubeError, Object
from gpushare.kube.trust import AuthorityFile, as_client_go

LOG = logging.getLogger(__name__)
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOGIN_SECONDS = 60.0
"""The time limit of a login by a kubeconfig, whose exec plugin may ask a person."""
MAX_CONNECTIONS = 100
"""Connections for requests. A request beyond that waits for one that is free."""
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A connection whose other side is gone without a word breaks after 30 s, much as those of client-go do."""
READ_BYTES = 64 * 1024
"""What is read ahead of one answer. Lines are put together by us, so no line has to fit into it."""

LogIn = Callable[[Configuration], Awaitable[None]]


class AccessError(Exception):
    """There is no way to the API server. The text says what is missing."""


async def log_in(
    configuration: Configuration,
    kubeconfig: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> None:
    """Fills in server, trust, credentials and proxy: in a pod those of its service account, elsewhere those of the
    current context of `kubeconfig`, or of KUBECONFIG or ~/.kube/config. AccessError.

    The proxy is the kubeconfig's, else that of the environment.
    """
    in_pod = kubeconfig is None and environ.get("KUBERNETES_SERVICE_HOST")
    try:
        if in_pod:
            token, authority = str(service_account / "token"), str(service_account / "ca.crt")
            InClusterConfigLoader(token, authority, environ=environ).load_and_set(configuration)
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            async with asyncio.timeout(LOGIN_SECONDS):
                await load_kube_config(config_file=file, client_configuration=configuration)
    except ConfigException as error:
        source = f"the service account in {service_account}" if in_pod else "the kubeconfig"
        raise AccessError(f"{source} gives no access to the API server: {error}") from error
    configuration.proxy = configuration.proxy or environment_proxy(configuration.host, environ)


class ApiSession:
    """Requests to one API server. Safe to use from many tasks of one event loop.

    Each watch keeps a connection, and there may be hundreds: among the requests they would keep all of those waiting,
    so they have connections of their own.
    """

    def __init__(self, configuration: Configuration, user_agent: str, refresh: LogIn | None = None) -> None:
        """Make it in the event loop that uses it. `refresh`: reads refused credentials anew; None: cannot."""
        self._configuration = configuration
        self._user_agent = user_agent
        self._refresh = refresh
        self._authority = AuthorityFile(configuration.ssl_ca_cert)
        self._requests, self._watches = self._open()
        self._replaced: list[ApiClient] = []

    async def close(self) -> None:
        for client in (self._requests, self._watches, *self._replaced):
            await client.close()

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Object | list[Object] | None,
        *,
        limits: aiohttp.ClientTimeout,
        content: str = "application/json",
        accept: str = "application/json",
        watch: bool = False,
    ) -> aiohttp.ClientResponse:
        """The answer, of which the body is still to be read. Raises KubeError, aiohttp.ClientError, TimeoutError."""
        self._renew_trust()
        client = self._watches if watch else self._requests
        request = await self._authorized(client, method, path, query, {"Accept": accept, "Content-Type": content})
        answer: aiohttp.ClientResponse = (await client.call_api(*request, body, _request_timeout=limits)).response
        if answer.status < HTTPStatus.BAD_REQUEST:
            return answer
        text = await answer.read()
        if answer.status == HTTPStatus.UNAUTHORIZED:
            await self._log_in_again()
        raise read_error(answer.status, text, answer.headers.get("Retry-After", ""))

    async def _authorized(
        self, client: ApiClient, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]
    ) -> tuple[str, str, dict[str, str]]:
        """(method, URL, headers). The body is left out: the library would copy it, looking for its own models."""
        try:
            method, url, headers, _, _ = await client.param_serialize(
                method, path, query_params=dict(query), header_params=headers, auth_settings=["BearerToken"]
            )
        except ConfigException as error:
            raise KubeError(HTTPStatus.UNAUTHORIZED, "Unauthorized", f"no credentials: {error}") from error
        return method, url, headers

    async def _log_in_again(self) -> None:
        try:
            if self._refresh is not None:
                await self._refresh(self._configuration)
        except (AccessError, OSError) as error:
            LOG.warning("credentials that were refused cannot be read anew: %s", error or type(error).__name__)

    def _renew_trust(self) -> None:
        """Opens new connections where the authority has changed. The old ones keep what is under way on them."""
        if not self._authority.changed():
            return
        try:
            opened = self._open()
        except ssl.SSLError as error:
            LOG.warning("%s holds no certificates, so those read before are used: %s", self._authority, error)
            return
        LOG.info("%s has changed: new connections are verified by it", self._authority)
        self._replaced += (self._requests, self._watches)
        self._requests, self._watches = opened

    def _open(self) -> tuple[ApiClient, ApiClient]:
        """Two clients: for requests, and for watches."""
        requests, watches = ApiClient(self._configuration), ApiClient(self._configuration)
        for client, limit in ((requests, MAX_CONNECTIONS), (watches, 0)):
            client.user_agent = self._user_agent
            client.rest_client.pool_manager = _connections(client.rest_client, limit)
        return requests, watches


async def session_for_kopf(log_in: LogIn = log_in) -> tuple[str, aiohttp.ClientSession]:
    """The server's URL and a session with our TLS and credentials, for requests that kopf makes by itself. AccessError.

    It has no User-Agent: kopf adds its own, by which its requests are told from ours.
    The session closes itself at the first request after its authority has changed, and raises RuntimeError: kopf logs
    in again then.
    """
    configuration = Configuration()
    await log_in(configuration)
    authority = AuthorityFile(configuration.ssl_ca_cert)

    async def authorize(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if authority.changed():
            await session.close()
            raise RuntimeError(f"the session is closed: {authority} has changed")
        try:
            token = await configuration.get_api_key_with_prefix("BearerToken")
        except (
            ConfigException,
            OSError,
        ) as error:  # kopf asks again after an error of the connection, and ends by others
            raise aiohttp.ClientConnectionError(f"no credentials: {error}") from error
        if token:
            request.headers["Authorization"] = token
        return await send(request)

    session = _connections(
        RESTClientObject(configuration),
        limit=0,
        middlewares=(authorize,),
        proxy=configuration.proxy,
    )
    return configuration.host, session


def _connections(rest: RESTClientObject, limit: int, **options: Any) -> aiohttp.ClientSession:
    """What the library opens by itself, with keepalive and without what each request would look for in vain."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, ssl=as_client_go(rest.ssl_context), socket_factory=_kept_alive),
        read_bufsize=READ_BYTES,
        **options,
    )


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # macOS lacks one
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
