"""The cluster as kubectl reaches it, with the user's own context and rights.

So credentials, exec plugins, proxies and versions are kubectl's matter. What is asked of the API server goes through
one `kubectl proxy`; what only kubectl can do is one run of it. Questions run beside one another and beside our imports:
each gives a Future.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from gpushare.kube.resources import CORE_EVENTS, KubeError, Object, Resource
from gpushare.kubectl.api import TOO_LARGE, ApiReader, through
from gpushare.kubectl.failures import UnreachableError, of_kubectl
from gpushare.kubectl.kept import kept_event
from gpushare.kubectl.proxy import Proxy

AT_ONCE = 16
"""Questions at a time."""
REQUEST_SECONDS = 15
PROCESS_SECONDS = 25
"""The time of one run of kubectl. More than a request: the credentials' own program may need some."""
Found = TypeVar("Found")

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
JSON_PATCH = "application/json-patch+json"


class Cluster:
    """Each method gives a Future; its result raises KubeError where the API server refuses, else UnreachableError."""

    def __init__(self, flags: Sequence[str] = (), program: str = "kubectl") -> None:
        """`flags`: of every run, such as --context=…"""
        self._flags = tuple(flags)
        self._program = program
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._proxy: Proxy | None = None
        self._ready: Future[Proxy]
        self._api: ApiReader

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._proxy is not None:
            self._proxy.close()

    def items(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Future[list[Object]]:
        """The items of a list; of an event what is shown. `selectors`: labelSelector, fieldSelector."""
        keep = kept_event if resource == CORE_EVENTS else _whole

        def asked(api: ApiReader) -> list[Object]:
            kept: list[Object] = []
            skipped = 0
            for page in api.pages(resource, namespace, **selectors):
                kept += map(keep, page.items)
                skipped += page.skipped
            if skipped:
                print(f"Left out: {skipped} of {resource.plural}, {TOO_LARGE}", file=sys.stderr)
            return kept

        return self._ask(asked)

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Future[Object | None]:
        """The object, or None where there is none."""

        def asked(api: ApiReader) -> Object | None:
            try:
                return api.read(resource.path(namespace, name))
            except KubeError as error:
                if error.not_found:
                    return None
                raise

        return self._ask(asked)

    def time(self) -> datetime:
        """The moment of the latest answer, as `ApiReader.time`; by our clock where nothing was asked."""
        api: ApiReader | None = getattr(self, "_api", None)
        return api.time() if api is not None else datetime.now(UTC)

    def read(self, path: str) -> Future[Object]:
        return self._ask(lambda api: api.read(path))

    def namespace(self) -> Future[str]:
        """The namespace of the context in use, or of the pod in which we run, as kubectl takes it."""

        def asked() -> str:
            try:
                view = json.loads(self.run("config", "view", "--minify", "--output=json"))
            except UnreachableError:
                # Without a context kubectl uses the pod's ServiceAccount; where it cannot, each question says why.
                return IN_POD.read_text().strip() if IN_POD.exists() else "default"
            context = (view.get("contexts") or [{}])[0].get("context") or {}
            return str(context.get("namespace") or "default")

        return self._pool.submit(asked)

    def proxied(self, namespace: str, pod: str, port: int, path: str) -> Future[str]:
        """What a pod answers to GET, through the API server: needs the right to get pods/proxy."""
        return self._ask(lambda api: api.metrics(namespace, pod, port, path))

    def try_create(self, resource: Resource, body: Object) -> Future[Object]:
        """A dry run: everything is judged, nothing is stored."""
        return self._ask(lambda api: api.send("POST", f"{resource.path()}?dryRun=All", body))

    def try_patch(self, resource: Resource, name: str, patch: list[Object]) -> Future[Object]:
        """A dry run of a JSON patch (RFC 6902)."""
        path = f"{resource.path(name=name)}?dryRun=All"
        return self._ask(lambda api: api.send("PATCH", path, patch, JSON_PATCH))

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of one run of kubectl, which is waited for."""
        command = [self._program, *arguments, *self._flags, f"--request-timeout={REQUEST_SECONDS}s"]
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                command, capture_output=True, text=True, timeout=PROCESS_SECONDS, **source
            )
        except FileNotFoundError:
            raise UnreachableError(f"no cluster: the program {self._program} is not on the PATH") from None
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"no cluster: kubectl has not answered within {PROCESS_SECONDS} s") from None
        if done.returncode != 0:
            raise of_kubectl(done.stderr)
        return done.stdout

    def _ask(self, question: Callable[[ApiReader], Found]) -> Future[Found]:
        """Asks the API server. The first question starts the proxy; its failure is that of every question."""
        if self._proxy is None:
            self._proxy = Proxy(self._program, self._flags)
            self._ready = self._pool.submit(self._proxy.wait_ready)
            self._api = through(self._proxy)

        def asked() -> Found:
            self._ready.result()
            return question(self._api)

        return self._pool.submit(asked)


def _whole(item: Object) -> Object:
    return item


def optional(asked: Future[list[Object]]) -> list[Object] | None:
    """The list; None where the user may not read it, or the API server does not serve it."""
    try:
        return asked.result()
    except KubeError as error:
        if error.not_found or error.status == HTTPStatus.FORBIDDEN:
            return None
        raise


def installed(asked: Future[list[Object]]) -> list[Object]:
    """The list of a kind of gpushare's own; UnreachableError says so where the cluster has no such kind."""
    try:
        return asked.result()
    except KubeError as error:
        if error.not_found:
            raise UnreachableError(
                "gpushare is not installed in this cluster: it has no GpuShares; `kubectl config current-context` says "
                "which cluster it is"
            ) from None
        raise
