"""The demo's output: a table of clients, live in a terminal, printed once per step elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from localcluster.demo.clients import DemoClient

PHASE_STYLES = {"Running": "green", "Pending": "yellow", "Terminating": "magenta", "Deleted": "dim", "Failed": "red"}


def clients_table(clients: Sequence[DemoClient], title: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in ("client", "phase", "GPU"):
        table.add_column(heading)
    for heading in ("granted\nthreads", "observed\nSMs", "granted\nmemory", "observed\nfree", "results\nchecked"):
        table.add_column(heading, justify="right")
    table.add_column("")
    gpus = sorted({client.gpu for client in clients if client.gpu})
    for client in clients:
        table.add_row(*_row(client, gpus))
    return table


def _row(client: DemoClient, gpus: Sequence[str]) -> list[str]:
    def shown(value: object, unit: str = "") -> str:
        return "" if value is None else f"{value}{unit}"

    style = PHASE_STYLES.get(client.phase, "")
    sms = f"{client.sms} of {client.total_sms}" if client.sms is not None else ""
    return [
        f"{client.name} ({client.role})" if client.role == "victim" else client.name,
        f"[{style}]{client.phase}[/]" if style else client.phase,
        f"#{gpus.index(client.gpu)}" if client.gpu else "",
        shown(client.threads, " %"),
        sms,
        shown(client.memory_mib, " MiB"),
        shown(client.free_mib, " MiB"),
        f"{client.checks:,}" if client.role == "neighbour" else "",
        f"[red]{client.problem}[/]" if client.problem else "",
    ]


def console() -> Console:
    """A console for standard error. Without a terminal the width is fixed, so that tables keep their lines."""
    plain = Console(stderr=True)
    return plain if plain.is_terminal else Console(stderr=True, width=118)
