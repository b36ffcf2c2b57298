"""Checks from inside a client container: a read-only directory with `control` alone, and no way to change a limit."""

from collections.abc import Iterator

import pytest

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Share, wait_until
from tests.cluster.node import daemon_of

PIPE = "/run/gpushare/mps"
PROBE = f"""
import json, os, pathlib
pipe = pathlib.Path({PIPE!r})
try:
    (pipe / "x").write_text("x")
    written = True
except OSError as error:
    written = error.strerror
print(json.dumps({{
    "event": "view",
    "entries": sorted(entry.name for entry in pipe.iterdir()),
    "written": written,
    "pipe": os.environ["CUDA_MPS_PIPE_DIRECTORY"],
    "nvidia": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
    "run": sorted(os.listdir("/run/gpushare")),
}}), flush=True)
"""
CHANGE = """
import json, subprocess
from gpushare.simulation import bin_dir
program = bin_dir() / "nvidia-cuda-mps-control"
def control(command):
    done = subprocess.run([program], input=command + "\\n", capture_output=True, text=True, timeout=10)
    return done.stdout.strip()
print(json.dumps({
    "event": "change",
    "set": control("set_default_active_thread_percentage 100"),
    "quit": control("quit"),
    "get": control("get_default_active_thread_percentage"),
}), flush=True)
"""
SERVER = """
import pathlib, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
pathlib.Path("/dev/shm/serves").touch()
time.sleep(3600)
"""
UNTIL_IT_SERVES = """
import pathlib, time
while not pathlib.Path("/dev/shm/serves").exists():
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def share(harness: Harness) -> Iterator[Share]:
    with harness.share("view", per_node=1) as share:
        yield share


@pytest.mark.usefixtures("share")
def test_the_directory_is_read_only_and_holds_socket_and_board_alone(harness: Harness) -> None:
    with harness.namespace() as tenant:
        tenant.start(tenant.pod("looker", "view", command=["python", "-c", PROBE]))
        seen = tenant.wait_event("looker", "view")
        assert seen["entries"] == ["board", "control"]
        assert seen["written"] == "Read-only file system"
        assert seen["pipe"] == PIPE
        assert seen["nvidia"] == "void"
        assert seen["run"] == ["mps", "pre-stop"]


def test_no_command_of_a_client_reaches_the_daemon_not_even_a_question(harness: Harness, share: Share) -> None:
    """The attach broker hangs up on control programs, so that they get no answer."""
    with harness.namespace() as tenant:
        daemon = daemon_of(harness, share)
        tenant.start(tenant.pod("changer", "view", command=["python", "-c", CHANGE]))
        seen = tenant.wait_event("changer", "change")
        assert (seen["set"], seen["quit"], seen["get"]) == ("", "", "")
        now = daemon_of(harness, share)
        assert [now[key] for key in ("controlPid", "serverPid")] == [daemon[key] for key in ("controlPid", "serverPid")]
        assert share.condition("LimitsEnforced")["status"] == "True"


@pytest.mark.usefixtures("share")
def test_a_hook_that_waits_for_its_own_program_delays_no_container(harness: Harness) -> None:
    """The pod's status names no container until all were started, those behind the hook included. So which one the
    program is in is known by the mount that the kubelet made for it.
    """
    with harness.namespace() as tenant:
        pod = tenant.pod("server", "view", command=["python", "-c", SERVER])
        [client] = pod["spec"]["containers"]
        client["lifecycle"] = {"postStart": {"exec": {"command": ["python", "-c", UNTIL_IT_SERVES]}}}
        beside = {key: value for key, value in client.items() if key not in ("resources", "lifecycle")}
        pod["spec"]["containers"].append(beside | {"name": "beside", "command": ["sleep", "600"]})
        tenant.start(pod)
        wait_until("both run", lambda: running(tenant.kubectl.get("pod", "server")) == {"app", "beside"}, 60,
                   lambda: tenant.explain("server"))  # fmt: skip
        assert "AttachRefused" not in {event["reason"] for event in tenant.kubernetes_events("server")}


def running(pod: Object) -> set[str]:
    return {item["name"] for item in pod["status"].get("containerStatuses", []) if "running" in item["state"]}
