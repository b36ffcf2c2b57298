"""Questions about fatal faults that only hardware answers: about `terminate_client`, signals, and NVML's Xids.

    python3 -m measurements.gpu.mps.faults OUT.json  (simulated: --simulation)

Run as root on a machine with a GPU that nobody uses, `nvidia-cuda-mps-control` on PATH, pytest and nvidia-ml-py; it
takes some two minutes. It asserts nothing: it records each answer, or the error instead. Compute mode PROHIBITED is not
tried: if it could not be set back, nobody could use the GPU any more.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpushare.mps.control import ControlError, ControlProgram
from gpushare.mps.supervisor.daemon_process import kill_server
from gpushare.nvml.types import NvmlError

if "--simulation" not in sys.argv:
    os.environ["GPUSHARE_CONTRACT"] = "real"

from measurements.gpu.environment import environment_block
from tests.contract import conftest
from tests.contract.conftest import Machine, Program

COMMAND_SECONDS = 4.0
SETTLE_SECONDS = 12.0
XID_PROGRAM = """
import json, sys, time
from gpushare.nvml.real import PynvmlNvml
nvml, end = PynvmlNvml(), time.monotonic() + float(sys.argv[1])
print("ready", flush=True)
while (left := end - time.monotonic()) > 0:
    for xid in nvml.wait_for_xids(left):
        print(json.dumps({"xid": xid.number, "uuid": xid.uuid, "at": time.time()}), flush=True)
"""
WITHOUT_PRIVILEGES = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all",
                      "--inh-caps=-all"]  # fmt: skip


class Scene:
    """A daemon with an ACTIVE server, two clients, and time since the scene began."""

    def __init__(self, machine: Machine, programs: Path | None) -> None:
        self.machine = machine
        machine.start_daemon("-multiuser-server")
        self.server = machine.server()
        self.control = ControlProgram(programs, machine.pipe, machine.log, COMMAND_SECONDS)
        environment = self.control._environment  # noqa: SLF001 - in operation it is the process' own
        environment.update(machine.environ, CUDA_MPS_PIPE_DIRECTORY=str(machine.pipe))
        self.began = time.monotonic()

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def ask(self, question: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            answer = question()
        except (ControlError, NvmlError, subprocess.TimeoutExpired) as error:
            answer = f"{type(error).__name__}: {error}"
        return {"answer": answer, "seconds": round(time.monotonic() - began, 3)}

    def state(self) -> dict[str, Any]:
        processes = self.machine.nvml.processes(self.machine.gpu.uuid)
        return {
            "at": self.seconds(),
            "status": self.ask(lambda: self.control.server_status(self.server))["answer"],
            "clients": self.ask(lambda: self.control.clients(self.server))["answer"],
            "survey": str(self.ask(lambda: self.control.survey(self.server))["answer"]),
            "nvml_clients": [process.pid for process in processes.mps_clients],
            "nvml_server": self.server in [process.pid for process in processes.compute],
        }

    def watch(self, seconds: float = SETTLE_SECONDS) -> list[dict[str, Any]]:
        """The states as they change, until there is no change for some time."""
        states = [self.state()]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.25)
            state = self.state()
            if {**state, "at": 0} != {**states[-1], "at": 0}:
                states.append(state)
        return states

    def faulted_pair(self) -> tuple[Program, Program]:
        """(culprit, neighbour), both alive after the culprit's illegal access."""
        neighbour, culprit = self.machine.client(), self.machine.client()
        culprit.send("fault illegal_address")
        culprit.answer()
        return culprit, neighbour

    def new_client(self) -> dict[str, Any]:
        began = time.monotonic()
        try:
            created = self.machine.program()("create")
        except AssertionError as error:
            created = {"error": str(error)}
        return {"created": created, "seconds": round(time.monotonic() - began, 3)}

    def until_served(self, seconds: float = 15.0) -> dict[str, Any]:
        """The time until a new client gets a context, by trying again and again."""
        began, errors = time.monotonic(), list[str]()
        while time.monotonic() - began < seconds:
            created = self.new_client()["created"]
            if "error" not in created:
                return {"seconds": round(time.monotonic() - began, 3), "errors_before": errors}
            errors.append(created["error"])
        return {"seconds": None, "errors_before": errors}

    def log_since(self, size: int) -> list[str]:
        """The log without the lines of our own commands."""
        lines = self.machine.daemon_log.read_text()[size:].splitlines()
        return [line for line in lines if not re.search(r"UI|Cmd:|Accepting|\] [\[\d(]|\] [A-Z]+$", line)]


def terminate_after_fault(scene: Scene) -> dict[str, Any]:
    """Does terminate_client work on a client after a fatal fault, and does the server recover while it lives?"""
    size = scene.machine.daemon_log.stat().st_size
    culprit, neighbour = scene.faulted_pair()
    answers: dict[str, Any] = {"after_the_fault": scene.watch(2), "log": scene.log_since(size)}
    answers["neighbour_gets"] = neighbour("sync")
    for name, program in (("neighbour", neighbour), ("culprit", culprit)):
        pid = program.pid
        answers[f"terminate_{name}"] = scene.ask(lambda pid=pid: scene.control.terminate_client(scene.server, pid))
        answers[f"daemon_after_terminating_{name}"] = scene.ask(scene.control.server_list)
    answers["afterwards"] = scene.watch()
    answers["new_client_while_they_live"] = scene.new_client()
    for program in (neighbour, culprit):
        program.kill()
    answers["after_their_end"] = scene.watch(4)
    answers["until_served"] = scene.until_served()
    return answers


def kill_after_fault(scene: Scene) -> dict[str, Any]:
    """What is the effect of SIGKILL on one faulted client while another lives, and when does a server serve again?"""
    culprit, neighbour = scene.faulted_pair()
    answers: dict[str, Any] = {"before": scene.state(), "new_client_in_fault": scene.new_client()}
    culprit.kill()
    answers["after_the_culprits_end"] = scene.watch(3)
    answers["neighbour_gets"] = neighbour("sync")
    neighbour.kill()
    answers["after_both_ended"] = scene.watch(3)
    began = time.monotonic()
    answers["server_killed"] = kill_server(scene.server)
    scene.ask(scene.control.start_server)
    scene.server = scene.machine.server()
    while not scene.state()["nvml_server"] and time.monotonic() - began < SETTLE_SECONDS:
        time.sleep(0.02)
    answers["seconds_until_a_new_server_holds_the_gpu"] = round(time.monotonic() - began, 3)
    answers["until_served"] = scene.until_served()
    return answers


def survey(scene: Scene) -> dict[str, Any]:
    """Do the commands that the supervisor batches answer as it reads them: no client, three contexts, no server?"""
    answers: dict[str, Any] = {"no_client": str(scene.ask(lambda: scene.control.survey(scene.server))["answer"])}
    clients = [scene.machine.client() for _ in range(3)]
    answers["three_clients"] = str(scene.ask(lambda: scene.control.survey(scene.server))["answer"])
    answers["three_clients_unknown_server"] = str(scene.ask(lambda: scene.control.survey(None))["answer"])
    batch = ("get_server_status 1", "get_server_list", "get_device_client_list")
    answers["raw"] = scene.ask(lambda: scene.control.run(*batch))["answer"]
    for client in clients:
        client("close")
        client.kill()
    kill_server(scene.server)
    time.sleep(1)
    answers["no_server"] = str(scene.ask(lambda: scene.control.survey(scene.server))["answer"])
    return answers


def xids(scene: Scene) -> dict[str, Any]:
    """Which Xids does NVML report, with what delay, and does a process without privileges get them too?"""
    seconds = 25
    watchers = {"root": [], "nobody_without_capabilities": WITHOUT_PRIVILEGES}
    running = {
        name: subprocess.Popen([*prefix, sys.executable, "-c", XID_PROGRAM, str(seconds)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        for name, prefix in watchers.items()
    }  # fmt: skip
    time.sleep(2)
    happened = {}
    for kind in ("assert", "illegal_address", "trap"):
        neighbour, culprit = scene.machine.client(), scene.machine.client()
        happened[kind] = time.time()
        culprit.send(f"fault {kind}")
        culprit.answer()
        time.sleep(1)
        for program in (culprit, neighbour):
            program.kill()
        time.sleep(1)
    neighbour, victim = scene.machine.client(), scene.machine.client()
    victim("launch 1500")
    time.sleep(0.2)
    happened["sigkill_in_mid_kernel"] = time.time()
    victim.kill()
    time.sleep(2)
    neighbour.kill()
    told = {}
    for name, process in running.items():
        out, err = process.communicate(timeout=seconds + 20)
        told[name] = {"told": [json.loads(line) for line in out.splitlines()[1:]], "error": err[-400:]}
    return {"happened": happened, **told}


QUESTIONS: dict[str, Callable[[Scene], dict[str, Any]]] = {
    "terminate_after_fault": terminate_after_fault,
    "kill_after_fault": kill_after_fault,
    "survey": survey,
    "xids": xids,
}


def main() -> None:
    [out] = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    results: dict[str, Any] = {"real": conftest.REAL, "environment": environment_block()}
    with contextmanager(conftest.parts_under_test)() as made:
        results["driver"] = made[1].driver_version()
        results["gpu"] = made[1].gpus().infos[0].product
        programs = Path(made[2]).parent
        for name, question in QUESTIONS.items():
            with tempfile.TemporaryDirectory(prefix="mps-") as directory:
                machine = Machine(Path(directory), *made)
                began = time.monotonic()
                try:
                    results[name] = question(Scene(machine, programs))
                except Exception as error:  # noqa: BLE001 - one question that fails leaves the others to be asked
                    results[name] = {"failed": f"{type(error).__name__}: {error}"}
                finally:
                    cleaning = threading.Thread(target=machine.clean_up, daemon=True)
                    cleaning.start()
                    cleaning.join(20)
                results[name]["took_seconds"] = round(time.monotonic() - began, 1)
                print(name, json.dumps(results[name], indent=1, default=str), flush=True)
                out.write_text(json.dumps(results, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
