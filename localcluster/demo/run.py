"""The demo, step by step. Each step prints its title, waits with a time limit, and fails with a reason."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from localcluster.demo.clients import DemoClient, read_clients
from localcluster.demo.pods import NAMESPACE, VICTIM, demo_pods
from localcluster.demo.view import clients_table
from localcluster.errors import LocalClusterError
from localcluster.kubectl import Kubectl, Object
from localcluster.paths import REPOSITORY
from localcluster.stack import Stack, install, prepare_namespace

SHARE_FILE = REPOSITORY / "examples" / "inference.yaml"
SHARE = "inference"
READY_SECONDS = 120
CLIENTS_SECONDS = 120
AFTER_DEPARTURE_SECONDS = 5.0


class Demo:
    """Runs once. `figures` collects the results, for the summary."""

    def __init__(self, stack: Stack, console: Console) -> None:
        self.stack = stack
        self.console = console
        self.figures: dict[str, Any] = {"simulated": stack.simulated, "steps_seconds": {}}

    def run(self) -> None:
        with self._step("helm install gpushare"):
            # A release of the user's keeps its values but the image.
            install(self.stack, *([] if self.stack.embedded else ["--reset-then-reuse-values"]))
        with self._step(f"kubectl apply -f {SHARE_FILE.relative_to(REPOSITORY)}"):
            self._share()
        with self._step(f"8 pods in namespace {NAMESPACE}, which enforces the restricted Pod Security Standard"):
            before = self._clients()
        with self._step(f"kubectl delete pod {VICTIM}, in the middle of a kernel of 1 s"):
            after = self._departure(before)
        self._judge(before, after)

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self.console.print(f"[bold]▸ {title}[/]")
        began = time.monotonic()
        yield
        seconds = round(time.monotonic() - began, 1)
        self.figures["steps_seconds"][title] = seconds
        self.console.print(f"  [dim]{seconds} s[/]")

    @contextmanager
    def _live(self) -> Iterator[Live]:
        with Live(console=self.console, auto_refresh=False) as live:
            yield live
        if not self.console.is_terminal:
            self.console.line()  # there rich ends no line behind the last table

    def _share(self) -> None:
        kubectl = self.stack.kubectl
        kubectl("apply", "-f", str(SHARE_FILE))

        def ready() -> bool:
            share = kubectl.get("gpushare", SHARE)
            return condition(share, "Ready").get("status") == "True"

        wait_until(ready, READY_SECONDS, lambda: _why_not_ready(kubectl))
        self.console.print(kubectl("get", "gpushares,gpunodes"), highlight=False, end="")

    def _clients(self) -> list[DemoClient]:
        kubectl = self.stack.kubectl.within(NAMESPACE)
        prepare_namespace(self.stack.kubectl, NAMESPACE, "restricted")
        kubectl.delete("pods", "--selector=demo=client", "--grace-period=1")
        pods = demo_pods(self.stack.workload_image, SHARE)
        kubectl.create(*pods)
        names = [pod["metadata"]["name"] for pod in pods]
        seen: list[DemoClient] = []

        def checking() -> bool:
            seen[:] = read_clients(kubectl, names)
            live.update(clients_table(seen, "clients"))
            return all(client.sms is not None and (client.checks or client.name == VICTIM) for client in seen)

        with self._live() as live:
            wait_until(checking, CLIENTS_SECONDS, lambda: _why_not_running(kubectl), refresh=live.refresh)
        return seen

    def _departure(self, before: list[DemoClient]) -> list[DemoClient]:
        kubectl = self.stack.kubectl.within(NAMESPACE)
        names = [client.name for client in before]
        kubectl.delete("pod", VICTIM, wait=False)
        gone_at: float | None = None
        seen = before
        with self._live() as live:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                seen = read_clients(kubectl, names)
                live.update(clients_table(seen, "clients"), refresh=True)
                if gone_at is None and any(
                    seen_client.name == VICTIM and seen_client.phase == "Deleted" for seen_client in seen
                ):
                    gone_at = time.monotonic()
                if gone_at is not None and time.monotonic() - gone_at > AFTER_DEPARTURE_SECONDS:
                    break
                time.sleep(0.5)
        events = kubectl.items("events", "--field-selector", f"involvedObject.name={VICTIM}")
        self.figures["departure_events"] = agent_events(events)
        for event in self.figures["departure_events"]:
            self.console.print(f"  event {event['reason']}: {event['message']}")
        return seen

    def _judge(self, before: list[DemoClient], after: list[DemoClient]) -> None:
        checks = {client.name: client.checks for client in before}
        neighbours = [client for client in after if client.name != VICTIM]
        going_on = [
            tenant
            for tenant in neighbours
            if tenant.phase == "Running" and tenant.checks > checks[tenant.name] and not tenant.problem
        ]
        self.figures["clients"] = [
            {
                "name": tenant.name, "gpu": tenant.gpu, "granted_threads_percent": tenant.threads,
                "observed_sms": tenant.sms, "total_sms": tenant.total_sms, "granted_memory_mib": tenant.memory_mib,
                "observed_free_mib": tenant.free_mib, "allocation_above_refused": tenant.above_refused,
                "limits_hold": tenant.limits_hold,
            }
            for tenant in before
        ]  # fmt: skip
        self.figures["limits_hold"] = sum(tenant.limits_hold for tenant in before)
        self.figures["neighbours"] = len(neighbours)
        self.figures["neighbours_going_on"] = len(going_on)
        self.figures["results_checked"] = sum(tenant.checks for tenant in neighbours)
        if len(going_on) < len(neighbours) or self.figures["limits_hold"] < len(before):
            raise LocalClusterError(
                f"{len(going_on)} of {len(neighbours)} neighbours went on, "
                f"limits hold for {self.figures['limits_hold']} of {len(before)} clients"
            )


def agent_events(events: Iterable[Object]) -> list[dict[str, str]]:
    """Reason and message of those that the node agent wrote, from the first to the last; the API lists them by name."""
    own = [event for event in events if event.get("reportingComponent") == "gpushare-agent"]
    own.sort(key=lambda event: str(event.get("eventTime") or event["metadata"]["creationTimestamp"]))
    return [{"reason": event["reason"], "message": event["message"]} for event in own]


def write_summary(figures: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")


def condition(obj: Object, kind: str) -> dict[str, Any]:
    return next((item for item in obj.get("status", {}).get("conditions", []) if item["type"] == kind), {})


def wait_until(
    done: Callable[[], bool],
    seconds: float,
    explain: Callable[[], str],
    refresh: Callable[[], None] = lambda: None,
) -> None:
    """Raises LocalClusterError with `explain()` after `seconds`."""
    end = time.monotonic() + seconds
    while not done():
        refresh()
        if time.monotonic() > end:
            raise LocalClusterError(f"not within {seconds:.0f} s: {explain()}")
        time.sleep(0.5)
    refresh()


def _why_not_ready(kubectl: Kubectl) -> str:
    ready = condition(kubectl.get("gpushare", SHARE), "Ready")
    return f"GpuShare {SHARE} is not Ready: {ready.get('reason', 'no condition yet')} {ready.get('message', '')}"


def _why_not_running(kubectl: Kubectl) -> str:
    waiting = [pod for pod in kubectl.items("pods") if pod["status"].get("phase") != "Running"]
    return f"{len(waiting)} pods do not run: " + kubectl("get", "pods", "-o", "wide")
