"""Notebooks on a share with a queue, by the manifests that docs/notebooks.md shows (examples/notebooks): a real
JupyterHub with its real spawner starts them, the webhook admits all of them.

The hub is opt-in (`make jupyterhub-test`), because its fifty packages are no part of gpushare. It runs on this machine,
without a proxy for browsers. A notebook's server is a stand-in of ours in our own image: it answers the hub, and starts
a kernel, which makes a context, when it is asked to.
"""

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.kubectl import Object
from localcluster.paths import REPOSITORY
from tests.cluster.harness import NODE, Harness, Share, Tenant, wait_until
from tests.cluster.tools.test_kubectl import why

EXAMPLES = REPOSITORY / "examples" / "notebooks"
PORT, TOKEN = 8081, "token-of-this-test"
CONFIGURATION = """
import json, os
import yaml
from jupyterhub.proxy import Proxy

class NoProxy(Proxy):
    should_start = False
    async def add_route(self, routespec, target, data): pass
    async def delete_route(self, routespec): pass
    async def get_all_routes(self): return {}

test = json.loads(os.environ["TEST"])
with open(test["values"]) as values:
    singleuser = yaml.safe_load(values)["singleuser"]
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.authenticator_class = "null"
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = test["url"]
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.services = [{"name": "test", "api_token": test["token"]}]
c.JupyterHub.load_roles = [{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers"]}]
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.profile_list = singleuser["profileList"]
c.KubeSpawner.namespace = test["namespace"]
c.KubeSpawner.image = test["image"]
c.KubeSpawner.extra_container_config = {"command": ["python3", "-c", test["server"]]}
c.KubeSpawner.delete_grace_period = 1
"""
SERVER = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
KERNEL = '''
import json, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
context.launch(1)
context.synchronize()
print(json.dumps({"event": "computes", "mps": context.under_mps}), flush=True)
while True:
    time.sleep(1)
'''
kernels = []
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.endswith(("/cell", "/restart")) and kernels:
            kernels.pop().kill()
        if self.path.endswith("/cell"):
            kernels.append(subprocess.Popen([sys.executable, "-c", KERNEL]))
        self.send_response(200)
        self.end_headers()
ThreadingHTTPServer(("", urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port), Handler).serve_forever()
"""
"""`/cell` starts a kernel that uses the GPU, in the place of one before; `/restart` ends it."""


@pytest.fixture
def notebooks(harness: Harness) -> Iterator[tuple[Share, Tenant]]:
    """The page's share, with one place on one GPU, and a namespace as strict as the chart of the hub needs it."""
    body = yaml.safe_load((EXAMPLES / "share.yaml").read_text())
    clients = body["spec"].pop("clients") | {"perGpu": 1}
    harness.kubectl("label", "node", NODE, "pool=gpu", "--overwrite")
    with (
        harness.share(body["metadata"]["name"], clients=clients, gpus={"perNode": 1}, **body["spec"]) as share,
        harness.namespace("notebooks", enforce="baseline") as tenant,
    ):
        share.wait_capacity(1 + clients["queue"]["slots"])
        yield share, tenant


def test_the_pages_manifests_are_admitted(harness: Harness, notebooks: tuple[Share, Tenant]) -> None:
    share, tenant = notebooks
    documents = [
        body
        for file in ("code-server.yaml", "kubeflow.yaml")
        for body in yaml.safe_load_all((EXAMPLES / file).read_text())
    ]
    made = [body for body in documents if "spec" in body]
    assert [body["kind"] for body in made] == ["Deployment", "Notebook"]
    for body in made:
        metadata, spec = {"name": body["metadata"]["name"]}, body["spec"]["template"]["spec"]
        pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        answer = tenant.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
        (container,) = json.loads(answer)["spec"]["containers"]
        assert container["resources"]["requests"][share.resource] == "1"
        assert "GPUSHARE_CLASS" in {item["name"] for item in container["env"]}, "the webhook has seen it"


def ask(host: str, port: int, method: str, path: str, body: Any = None) -> Any:
    """What it answers, as JSON."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
    with closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
    assert answer.status < 300, f"{method} {path}: {answer.status} {text!r}"
    return json.loads(text or "null")


@dataclass(frozen=True)
class Hub:
    host: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return ask(self.host, PORT, method, f"/hub/api{path}", body)

    def answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/"))
        except OSError:
            return False

    def spawn(self, user: str, profile: str) -> None:
        self.ask("POST", f"/users/{user}")
        self.ask("POST", f"/users/{user}/server", {"profile": profile})

    def server(self, user: str) -> dict[str, Any]:
        """Empty: the user has none."""
        servers: dict[str, dict[str, Any]] = self.ask("GET", f"/users/{user}")["servers"]
        return servers.get("", {})


@contextmanager
def running_hub(harness: Harness, tenant: Tenant, environment: Path, directory: Path) -> Iterator[Hub]:
    hub = Hub(harness.layout.network.host_ip)
    test = {
        "values": str(EXAMPLES / "jupyterhub.yaml"),
        "url": f"http://{hub.host}:{PORT}",
        "token": TOKEN,
        "namespace": tenant.name,
        "image": harness.stack.workload_image,
        "server": SERVER,
    }
    (directory / "jupyterhub_config.py").write_text(CONFIGURATION)
    log = directory / "hub.log"
    variables = {**os.environ, **harness.stack.environment, "TEST": json.dumps(test), "NO_PROXY": "*"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [environment / "bin" / "jupyterhub"], cwd=directory, env=variables, stdout=output, stderr=output
        )
    try:
        wait_until("the hub answers", hub.answers, 60, lambda: log.read_text()[-3000:])
        yield hub
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        process.terminate()
        process.wait(60)


def get(pod: Object, path: str) -> None:
    """Of the notebook's server, as a browser would through the hub's proxy."""
    ask(pod["status"]["podIP"], 8888, "GET", path)


def test_users_of_a_jupyterhub_wait_for_a_place_and_give_it_back(
    request: pytest.FixtureRequest, harness: Harness, notebooks: tuple[Share, Tenant], tmp_path: Path
) -> None:
    environment = request.config.getoption("--jupyterhub")
    if environment is None:
        pytest.skip("needs an installed JupyterHub: make jupyterhub-test")
    share, tenant = notebooks
    with running_hub(harness, tenant, Path(environment), tmp_path) as hub:
        for user in ("ada", "bob"):
            hub.spawn(user, "python-with-a-part-of-a-gpu")
        for user in ("ada", "bob"):
            wait_until(f"{user}'s server", lambda user=user: hub.server(user).get("ready"), 60, tenant.pods)
        pods = {pod["metadata"]["labels"]["hub.jupyter.org/username"]: pod for pod in tenant.pods()}
        names = {user: pod["metadata"]["name"] for user, pod in pods.items()}
        assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods.values()] == [
            {share.resource: "1"}
        ] * 2
        wait_until("two slots are held", lambda: sum(harness.held_by_gpu(share.name).values()) == 2, 30)

        get(pods["ada"], "/cell")
        assert tenant.wait_event(names["ada"], "computes")["mps"]
        get(pods["bob"], "/cell")
        assert "at position 1 of 1: 1 of 1 place is taken" in why(harness, tenant, names["bob"], "waits")["sentence"]
        assert "waits for a place on the GPU: number 1 of 1 that wait" in tenant.kubectl.logs(names["bob"])
        get(pods["bob"], "/")  # the server answers while its kernel waits
        assert not tenant.events_of(names["bob"], "computes")

        get(pods["ada"], "/restart")
        assert tenant.wait_event(names["bob"], "computes")["mps"]
        get(pods["ada"], "/cell")
        why(harness, tenant, names["ada"], "waits")
        hub.ask("DELETE", "/users/bob/server")  # as the hub's culler does
        wait_until("ada computes again", lambda: len(tenant.events_of(names["ada"], "computes")) == 2, 60)
        wait_until("bob's slot is free", lambda: sum(harness.held_by_gpu(share.name).values()) == 1, 30)
        assert hub.server("ada")["ready"]
        hub.ask("DELETE", "/users/ada/server")
