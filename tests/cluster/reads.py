"""kubectl whose reads are plain requests: tests that wait ask several times a second, and a process per question would
be most of the CPU time of a run. What changes something goes through kubectl, as a user would do it, but for namespaces
of tests and for what they tidy up."""

import http.client
import json
import ssl
import threading
from dataclasses import dataclass
from urllib.parse import urlencode

from localcluster.cluster.layout import Layout
from localcluster.kubectl import CommandError, Kubectl, Object

SECONDS = 30.0
_CORE, _OURS, _CLAIMS = "/api/v1", "/apis/gpushare.dev/v1alpha1", "/apis/resource.k8s.io/v1"
_RESOURCES = {
    "pod": (_CORE, "pods", True),
    "event": (_CORE, "events", True),
    "serviceaccount": (_CORE, "serviceaccounts", True),
    "node": (_CORE, "nodes", False),
    "daemonset": ("/apis/apps/v1", "daemonsets", True),
    "deployment": ("/apis/apps/v1", "deployments", True),
    "job": ("/apis/batch/v1", "jobs", True),
    "lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "resourceclaim": (_CLAIMS, "resourceclaims", True),
    "resourceclaimtemplate": (_CLAIMS, "resourceclaimtemplates", True),
    "resourceslice": (_CLAIMS, "resourceslices", False),
    "gpushare": (_OURS, "gpushares", False),
    "gpunode": (_OURS, "gpunodes", False),
}
"""Resources by kubectl's singular: path of the API group, plural, whether it lives in a namespace."""


class Api:
    """Requests to a cluster's apiserver as its administrator, one connection per thread."""

    def __init__(self, layout: Layout) -> None:
        self._host = layout.network.node_ip
        self._context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self._context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        self._local = threading.local()

    def get(self, path: str, **query: str) -> bytes:
        """The body. Raises CommandError where the answer is no 200, or there is none."""
        url = f"{path}?{urlencode(query)}" if query else path
        for attempt in (1, 2):
            try:
                status, body = self._ask(url)
                break
            except (OSError, http.client.HTTPException) as error:
                self._local.connection = None
                if attempt == 2:  # the first may only have found a connection that the server had closed
                    raise CommandError(["GET", url], f"no answer: {error}") from error
        if status != 200:
            raise CommandError(["GET", url], body.decode(errors="replace"))
        return body

    def send(self, method: str, path: str, body: Object | None = None) -> bool:
        """Writes. Returns whether there is such an object; raises CommandError where it is refused or not answered."""
        self._local.connection = None  # a write is not sent twice, so not by a connection that the server has closed
        try:
            status, answer = self._ask(path, method, body)
        except (OSError, http.client.HTTPException) as error:
            raise CommandError([method, path], f"no answer: {error}") from error
        if status != 404 and not 200 <= status < 300:
            raise CommandError([method, path], answer.decode(errors="replace"))
        return status != 404

    def _ask(self, url: str, method: str = "GET", body: Object | None = None) -> tuple[int, bytes]:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(self._host, 6443, timeout=SECONDS, context=self._context)
            self._local.connection = connection
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body else {})
        connection.request(method, url, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@dataclass(frozen=True, slots=True)
class ReadingKubectl(Kubectl):
    """The same, with `get`, `items`, `find` and `logs` of what tests ask often by `api`."""

    api: Api | None = None

    def get(self, *arguments: str) -> Object:
        request = self._request(arguments)
        if request is None or self.api is None:
            return Kubectl.get(self, *arguments)
        answer: Object = json.loads(self.api.get(request[0], **request[1]))
        for item in answer.get("items", ()):  # as kubectl completes them
            item.setdefault("kind", answer["kind"].removesuffix("List"))
            item.setdefault("apiVersion", answer["apiVersion"])
        return answer

    def find(self, *arguments: str) -> Object | None:
        if self._request(arguments) is None:
            return Kubectl.find(self, *arguments)
        try:
            return self.get(*arguments)
        except CommandError as error:
            if '"reason":"NotFound"' in error.text.replace(" ", ""):
                return None
            raise

    def logs(self, pod: str) -> str:
        if self.api is None or self.extra:
            return Kubectl.logs(self, pod)
        return self.api.get(f"{_CORE}/namespaces/{self.namespace}/pods/{pod}/log").decode()

    def _request(self, arguments: tuple[str, ...]) -> tuple[str, dict[str, str]] | None:
        """(path, query) of `get ARGUMENTS`; None for what is better left to kubectl."""
        kind, *rest = arguments
        query, name, everywhere = {}, "", False
        while rest:
            word = rest.pop(0)
            if word == "--field-selector":
                query["fieldSelector"] = rest.pop(0)
            elif word.startswith("--selector="):
                query["labelSelector"] = word.partition("=")[2]
            elif word == "--all-namespaces":
                everywhere = True
            elif name or word.startswith("-"):
                return None
            else:
                name = word
        known = _RESOURCES.get(kind.removesuffix("s"))
        if known is None or self.extra:
            return None
        group, plural, namespaced = known
        place = f"/namespaces/{self.namespace or 'default'}" if namespaced and not everywhere else ""
        return f"{group}{place}/{plural}" + (f"/{name}" if name else ""), query
