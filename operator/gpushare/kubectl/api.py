"""Requests to the API server, each with a time limit and a largest answer; lists in pages, watches line by line.

On a user's machine they go through `kubectl proxy`, so with the kubeconfig's credentials, at a Unix socket that only
the user reaches. In a pod they go with its ServiceAccount's token.

Guarantees: of a list no more than PAGE_BYTES of text and one page of its objects are in memory at a time, of a watch no
more than one event, whatever tenants write; an object of more than MOST_OBJECT_BYTES is skipped and counted, so that it
hides no other. One answer is parsed at a time.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from gpushare.kube.resources import PODS, Object, Resource
from gpushare.kube.trust import Trust
from gpushare.kubectl.failures import UnreachableError, of_answer, unreachable
from gpushare.kubectl.proxy import ANSWER_SECONDS, Proxy

REQUEST_SECONDS = 15.0
"""The longest silence of the API server, where no program that logs in stands between."""
PAGE_ITEMS = 500
PAGE_BYTES = 1024 * 1024
"""A page that has more is asked for again with fewer objects. As objects it takes up to some 20 times as much."""
MOST_OBJECT_BYTES = 4 * 1024 * 1024
TOO_LARGE = f"each of more than {MOST_OBJECT_BYTES // 1024**2} MiB"
"""What is said of those that are skipped."""
MOST_METRICS_BYTES = 4 * 1024 * 1024
MOST_REFUSAL_BYTES = 64 * 1024
CHUNK_BYTES = 64 * 1024
LONGEST_UNREAD = 80
_CHANGING = "^(POST|PUT|PATCH|DELETE|OPTIONS|HEAD|CONNECT|TRACE)$"
_HEAD = re.compile(rb'\{"kind":"\w+","apiVersion":"[\w./]+","metadata":(\{[^{}]*\}),"items":\[')
"""How a list of one of Kubernetes' own kinds begins. That of a defined kind has its metadata at the end."""


class AnswerTooLargeError(UnreachableError):
    """An answer has more bytes than its reader takes. `beginning`: the first of them."""

    def __init__(self, path: str, most: int, beginning: bytes) -> None:
        super().__init__(f"the answer to {path} has more than {most} bytes")
        self.beginning = beginning


@dataclass(frozen=True, slots=True)
class ListPage:
    """`version`: of the whole list; `skipped`: how many objects are left out here, since they are too large."""

    items: Sequence[Object]
    version: str
    skipped: int = 0


class ApiReader:
    """Each request has a connection of its own, so it is safe to use from many threads. What is asked raises KubeError
    where the API server refuses, UnreachableError where it does not answer, and AnswerTooLargeError where it says
    too much.
    """

    def __init__(
        self,
        connect: Callable[[float], HTTPConnection],
        headers: Callable[[], Mapping[str, str]],
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        """`connect`: takes the time limit, in seconds, of each step. `headers`: of each request, made anew for each.
        `seconds`: the longest silence."""
        self._connect = connect
        self.headers = headers
        self._seconds = seconds
        self._parsing = threading.Lock()
        self.date = ""
        """When the latest answer was given, by the API server's clock, as HTTP writes it; empty: it did not say."""

    def time(self) -> datetime:
        """The moment of the latest answer, by the API server's clock; by ours where it has not said."""
        try:
            return parsedate_to_datetime(self.date)
        except ValueError:
            return datetime.now(UTC)

    def get(self, path: str, query: Mapping[str, str] | None = None, most: int = MOST_OBJECT_BYTES) -> bytes:
        return self._body("GET", path, query, most=most)

    def read(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        return self._object(path, self.get(path, query))

    def send(self, method: str, path: str, body: Any, content: str = "application/json") -> Object:
        """The object that answers a request with a body. `content`: the type of the body, which is sent as JSON."""
        return self._object(path, self._body(method, path, None, json.dumps(body).encode(), content))

    def pages(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Iterator[ListPage]:
        """The list in pieces. KubeError.gone: it took too long, list again."""
        path, limit, token = resource.path(namespace), PAGE_ITEMS, ""
        while True:
            query = {**selectors, "limit": str(limit), **({"continue": token} if token else {})}
            try:
                body = self.get(path, query, MOST_OBJECT_BYTES if limit == 1 else PAGE_BYTES)
            except AnswerTooLargeError as error:
                if limit > 1:
                    limit = max(1, limit // 8)
                    continue
                metadata = _metadata(error)
                yield ListPage((), str(metadata.get("resourceVersion") or ""), skipped=1)
            else:
                page = self._object(path, body)
                metadata = page.get("metadata") or {}
                items: list[Object] = list(page.get("items") or ())
                yield ListPage(items, str(metadata.get("resourceVersion") or ""))
                if items:
                    three_quarters = len(items) * PAGE_BYTES * 3 // (4 * len(body))  # objects differ
                    limit = max(1, min(PAGE_ITEMS, three_quarters))
                del page, body, items
            token = str(metadata.get("continue") or "")
            if not token:
                return

    def lines(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[bytes | None]:
        """Each line as it comes, None for one of more than MOST_OBJECT_BYTES, until the API server ends the answer or
        nothing has come for `seconds`."""
        with self._answer("GET", path, query, seconds=seconds) as response:
            while True:
                line, whole = response.readline(MOST_OBJECT_BYTES), True
                while line and not line.endswith(b"\n"):  # the rest of a long one, or the end of the answer
                    line, whole = response.readline(CHUNK_BYTES), False
                if not line:
                    return
                yield line if whole else None

    def metrics(self, namespace: str, pod: str, port: int, path: str = "metrics") -> str:
        """What a pod answers, through the API server: needs the right to get pods/proxy."""
        target = PODS.path(namespace, f"{pod}:{port}", "proxy")
        return self.get(f"{target}/{path}", most=MOST_METRICS_BYTES).decode(errors="replace")

    def parsed(self, text: bytes) -> Any:
        """The JSON value. ValueError: it is none."""
        with self._parsing:
            try:
                return json.loads(text)
            except RecursionError as error:
                raise ValueError(str(error)) from None

    def _object(self, path: str, body: bytes) -> Object:
        try:
            answer = self.parsed(body)
        except ValueError:
            raise UnreachableError(f"the answer to {path} is no JSON: {_beginning(body)!r}") from None
        if not isinstance(answer, dict):
            raise UnreachableError(f"the answer to {path} is no object: {_beginning(body)!r}")
        return answer

    def _body(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None = None,
        content: str = "",
        most: int = MOST_OBJECT_BYTES,
    ) -> bytes:
        with self._answer(method, path, query, body, content, self._seconds) as response:
            text = response.read(most + 1)
        if len(text) > most:
            raise AnswerTooLargeError(path, most, text[:CHUNK_BYTES])
        return text

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None = None,
        content: str = "",
        seconds: float = REQUEST_SECONDS,
    ) -> Iterator[HTTPResponse]:
        connection = self._connect(seconds)
        try:
            # Without Accept-Encoding kubectl asks for compressed answers, and unpacks them.
            connection.putrequest(method, f"{path}?{urlencode(query)}" if query else path, skip_accept_encoding=True)
            for name, value in {"User-Agent": "kubectl-gpushare", "Accept": "application/json, */*"}.items():
                connection.putheader(name, value)
            for name, value in self.headers().items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Type", content)
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            self.date = response.getheader("Date") or self.date
            if response.status >= HTTPStatus.BAD_REQUEST:
                _refuse(response)
            yield response
        except TimeoutError:
            raise unreachable(f"the API server has not answered for {seconds:.0f} s") from None
        except (OSError, HTTPException) as error:
            raise unreachable(f"the connection broke off: {error}") from None
        finally:
            connection.close()


def _refuse(response: HTTPResponse) -> NoReturn:
    raise of_answer(response.status, response.read(MOST_REFUSAL_BYTES).decode(errors="replace"))


def _metadata(error: AnswerTooLargeError) -> Object:
    """The metadata of a list whose one object is too large. Raises `error` where they are not at its beginning."""
    head = _HEAD.match(error.beginning)
    if head is None:
        raise error
    metadata: Object = json.loads(head[1])
    return metadata


def _beginning(body: bytes) -> str:
    return body[:LONGEST_UNREAD].decode(errors="replace")


def through(proxy: Proxy) -> ApiReader:
    return ApiReader(proxy.connection, dict, ANSWER_SECONDS)


@contextmanager
def through_kubectl(flags: Sequence[str], program: str = "kubectl") -> Iterator[ApiReader]:
    """`flags`: such as --context=…. Raises UnreachableError where kubectl has no cluster; ends its proxy at the end.

    The proxy refuses everything but GET.
    """
    proxy = Proxy(program, [f"--reject-methods={_CHANGING}", *flags])
    try:
        proxy.wait_ready()
        yield through(proxy)
    finally:
        proxy.close()


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def of_a_pod(host: str, port: int, account: Path = SERVICE_ACCOUNT) -> ApiReader:
    """The API server as a pod sees it. Token and authority are read for each request, since the kubelet renews them."""
    trust = Trust(account / "ca.crt")
    return ApiReader(
        lambda seconds: HTTPSConnection(host, port, timeout=seconds, context=trust.context()),
        lambda: {"Authorization": f"Bearer {(account / 'token').read_text().strip()}"},
    )
