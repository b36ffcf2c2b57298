"""The few requests of `up` to the apiserver, over TLS with the admin certificate. Proxies are ignored."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from localcluster.cluster.layout import NODE_NAME, Layout
from localcluster.errors import LocalClusterError


def get(layout: Layout, path: str) -> bytes:
    """The body of a GET. Raises OSError, which includes HTTPError, without a good answer within 5 s."""
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(layout.network.server + path, timeout=5) as response:
        body: bytes = response.read()
    return body


def is_ready(layout: Layout) -> bool:
    return get(layout, "/readyz") == b"ok"


def node_is_ready(layout: Layout) -> bool:
    node = json.loads(get(layout, f"/api/v1/nodes/{NODE_NAME}"))
    conditions = node["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def pods_can_start(layout: Layout) -> bool:
    """Pods are refused until the default ServiceAccount exists."""
    return bool(get(layout, "/api/v1/namespaces/default/serviceaccounts/default"))


def wait_for(what: str, holds: Callable[[], bool], limit_s: float) -> None:
    """Calls `holds` every 0.1 s until it is true; an OSError counts as false.

    Raises LocalClusterError after `limit_s`, with the last error.
    """
    end, last = time.monotonic() + limit_s, "no answer yet"
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError as error:
            last = str(error)
        time.sleep(0.1)
    raise LocalClusterError(f"{what}: not within {limit_s:.0f} s ({last})")
