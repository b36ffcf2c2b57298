"""`kubectl gpushare ui` against a real API server: what its page is sent is what is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

from localcluster.stack import NAMESPACE, install
from tests.cluster.harness import NODE, Harness, Tenant, wait_until


class PageReader:
    """Reads as the page does: only what is newer than it has."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._path = parts.netloc, parts.path
        self.rows: dict[str, Any] = {}
        self._epoch, self._since = "", 0

    def get(self, path: str, host: str = "") -> tuple[int, bytes]:
        connection = HTTPConnection(self._host, timeout=30)
        try:
            connection.request("GET", self._path + path, headers={"Host": host or self._host})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self) -> dict[str, Any]:
        answer = json.loads(self.get(f"changes?epoch={self._epoch}&since={self._since}&nodes={NODE}")[1])
        if answer["reset"]:
            self.rows.clear()
        self.rows.update(answer["changed"])
        for key in answer["gone"]:
            del self.rows[key]
        self._epoch, self._since = answer["epoch"], answer["revision"]
        return self.rows

    def wait_client(self, pod: str) -> tuple[Any, Any]:
        """The figures of its GPU, and of the client itself."""

        def client() -> tuple[Any, Any] | None:
            figures = [row for key, row in self.ask().items() if key.startswith("figures/")]
            return next(((row, client) for row in figures for client in row["clients"] if client["pod"] == pod), None)

        client_and_row = wait_until("the client is on the page", client, 60, self.notes)
        assert client_and_row is not None
        return client_and_row

    def notes(self) -> list[str]:
        return [row["message"] for key, row in self.rows.items() if key.startswith("note/")]


@contextmanager
def ui(harness: Harness, *arguments: str) -> Iterator[PageReader]:
    """Ends as by Ctrl-C in a terminal's other process: by SIGTERM, and leaves no process."""
    command = [sys.executable, "-m", "gpushare.kubectl.main", "ui", "--no-browser", *arguments]
    environment = {**os.environ, **harness.stack.environment}
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        if not address:
            raise AssertionError(program.communicate(timeout=10)[1])
        children = _children(program.pid)
        yield PageReader(address)
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=20) == 0
    assert children, "kubectl proxy"
    wait_until("kubectl proxy ends", lambda: not any(_is_alive(child) for child in children), 10)


def _children(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listing.stdout.split()]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_page_follows_share_client_and_waiting_pod(harness: Harness) -> None:
    with ui(harness) as page, harness.share("shown", per_node=1, per_gpu=1), harness.namespace() as tenant:
        (name,) = tenant.neighbours("shown", 1)

        figures, shown = page.wait_client(name)
        assert (shown["namespace"], shown["share"]) == (tenant.name, "shown")
        assert 0 < shown["used"] <= shown["granted"]
        gpu = f"gpu/{figures['uuid']}"
        wait_until("the slot is held", lambda: page.ask()[gpu]["held"] == 1)
        assert [page.rows[gpu][key] for key in ("node", "share", "ready")] == [NODE, "shown", True]
        assert page.rows["share/shown"]["slots"] == 1

        tenant.start(tenant.pod("late", "shown"))
        held = "it waits for a slot of share shown: its only one is held"
        wait_until(
            "the pod waits, and why",
            lambda: page.ask().get(f"pod/{tenant.name}/late", {"sentence": ""})["sentence"].startswith(held),
            60,
            lambda: [row for key, row in page.rows.items() if key.startswith(("pod/", "share/"))],
        )
        status, body = page.get(f"pod?namespace={tenant.name}&name={quote(name)}")
        assert (status, [gpu["uuid"] for gpu in json.loads(body)["gpus"]]) == (200, [figures["uuid"]])
        assert page.get(f"pod?namespace={tenant.name}&name=none")[0] == 404
        assert page.get("", host="evil.example")[0] == 421
        tenant.delete_pods("late")
        wait_until("it is gone", lambda: f"pod/{tenant.name}/late" not in page.ask(), 60)
        assert page.notes() == []


def test_a_tenant_of_many_large_objects_blinds_nobody_and_is_cut(harness: Harness) -> None:
    """36 MB of events: more than the page ever reads at once. In the name of a part of ours nobody may write one."""
    with harness.namespace("crowd") as crowd, harness.namespace("quiet") as quiet:
        for number in range(36):
            refuse(crowd, f"e{number}", "x" * 1_000_000)
        refuse(quiet, "mine", "denied the request")
        with ui(harness) as page:
            rows = wait_until(
                "the events of both",
                lambda: (
                    [row for key, row in page.ask().items() if key.startswith("event/")]
                    if {crowd.name, quiet.name} <= {row.get("namespace") for row in page.ask().values()}
                    else []
                ),
                60,
                page.notes,
            )
            assert max(len(row["message"]) for row in rows) < 5000
            assert page.notes() == []


REFUSED = 'admission webhook "pods.gpushare.dev" denied the request:'


def refuse(tenant: Tenant, name: str, text: str) -> None:
    """An event as of a controller whose pod our webhook refuses: every editor of the namespace may write one."""
    about = {"kind": "Job", "namespace": tenant.name, "name": name}
    body = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about, "type": "Warning",
        "reason": "FailedCreate", "message": f'{REFUSED} {text}', "lastTimestamp": "2026-03-01T00:00:00Z",
    }  # fmt: skip
    tenant.harness.api.send("POST", f"/api/v1/namespaces/{tenant.name}/events", body)


def test_who_may_read_little_sees_that_and_why_not_more(harness: Harness) -> None:
    with harness.namespace() as tenant:
        account = f"system:serviceaccount:{tenant.name}:default"
        command = [sys.executable, "-m", "gpushare.kubectl.main", "ui", "--no-browser", f"--as={account}"]
        environment = {**os.environ, **harness.stack.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert 'cannot list resource "gpushares"' in done.stderr


@contextmanager
def in_cluster(harness: Harness) -> Iterator[PageReader]:
    """The page as the chart serves it, reached by kubectl port-forward."""
    install(harness.stack, "--set=ui.enabled=true", "--set=ui.hosts={gpus.example.com}")
    try:
        command = ["kubectl", "port-forward", "-n", NAMESPACE, "service/gpushare-ui", ":80"]
        environment = {**os.environ, **harness.stack.environment}
        forward = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert forward.stdout is not None
            said = forward.stdout.readline()  # Forwarding from 127.0.0.1:40000 -> 8090
            yield PageReader(f"http://{said.split()[2]}/")
        finally:
            forward.terminate()
            forward.wait(timeout=10)
    finally:
        install(harness.stack)


def test_the_chart_serves_the_same_page_with_the_rights_of_its_account(harness: Harness) -> None:
    with in_cluster(harness) as page, harness.share("served", per_node=1, per_gpu=1), harness.namespace() as tenant:
        (name,) = tenant.neighbours("served", 1)
        figures, shown = page.wait_client(name)
        assert (figures["node"], shown["namespace"]) == (NODE, tenant.name)
        assert page.get("", host="gpus.example.com")[0] == 200
        assert page.get("", host="evil.example")[0] == 421
        status, body = page.get(f"pod?namespace={tenant.name}&name={quote(name)}")
        assert (status, json.loads(body)["phase"]) == (200, "Running")
        assert page.notes() == []
    assert harness.kubectl.find("deployment", "gpushare-ui", "-n", NAMESPACE) is None
