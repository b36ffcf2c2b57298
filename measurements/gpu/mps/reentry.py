"""Can a terminated client come back in the same process, and be terminated again?

    python3 -m measurements.gpu.mps.reentry OUT.json  (simulated: --simulation)

A second `terminate_client` for a process that keeps its terminated contexts hangs the daemon until the process ends.
Here the process replaces its program (exec) in between. On an H100 it was a new client, and the second command ended it
as the first had: so the attach broker lets no such process in, whose end in mid-kernel would take its neighbours along.
Run as root on an idle GPU, nvidia-cuda-mps-control on PATH. Ends everything that it started.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if "--simulation" not in sys.argv:
    os.environ["GPUSHARE_CONTRACT"] = "real"

from measurements.gpu.environment import environment_block
from tests.contract import conftest
from tests.contract.conftest import Machine

HANG_SECONDS = 10.0


def ended(machine: Machine, server: int, pid: int) -> dict[str, Any]:
    """The answer of `terminate_client`, or that it hangs."""
    began = time.monotonic()
    try:
        answer = machine.control(f"terminate_client {server} {pid}", seconds=HANG_SECONDS).stdout.strip()
    except subprocess.TimeoutExpired:
        answer = "hangs"
    return {"answer": answer, "seconds": round(time.monotonic() - began, 3)}


def measure(machine: Machine, outcome: dict[str, Any]) -> None:
    """Into `found`, answer by answer: one may never come."""
    machine.start_daemon("-multiuser-server")
    server = machine.server()
    neighbour, client = machine.client(), machine.client()
    outcome["simulated"] = machine.simulated
    outcome["first"] = ended(machine, server, client.pid)
    outcome["after_the_first"] = client("sync")
    client("replace")
    outcome["created_again"] = client("create")
    listed = [item.pid for item in machine.nvml.processes(machine.gpu.uuid).mps_clients]
    outcome["listed_by_nvml"] = client.pid in listed
    outcome["second"] = ended(machine, server, client.pid)
    if outcome["second"]["answer"] != "hangs":
        outcome["after_the_second"] = client("sync")
        client.kill()
        outcome["neighbour"] = neighbour("sync")


def main() -> int:
    [out] = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    outcome: dict[str, Any] = {}
    with contextlib.contextmanager(conftest.parts_under_test)() as parts, tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory), *parts)
        try:
            measure(machine, outcome)
        finally:
            out.write_text(json.dumps({**outcome, "environment": environment_block()}, indent=2) + "\n")
            print(json.dumps(outcome, indent=2))
            machine.clean_up()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
