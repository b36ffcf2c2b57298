"""Ways around the limits that somebody tried: each is carried out, and nothing comes of it."""

import json
from typing import Any

from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.node import daemon_of

LEAK = """
import os, socket, time
directory = os.open(os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.O_PATH)
listener = socket.socket(socket.AF_UNIX)
listener.bind("/shared/leak")
os.chmod("/shared/leak", 0o777)
listener.listen(1)
connection, _ = listener.accept()
socket.send_fds(connection, [b"pipe"], [directory])
time.sleep(3600)
"""
"""The container that holds the slot passes its pipe directory on."""
ABUSE = """
import json, os, socket, subprocess, time
from gpushare.simulation import bin_dir
while True:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect("/shared/leak")
        break
    except OSError:
        connection.close()
        time.sleep(0.2)
_, (directory,), _, _ = socket.recv_fds(connection, 16, 1)
environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": f"/proc/self/fd/{directory}"}
def control(command):
    done = subprocess.run([bin_dir() / "nvidia-cuda-mps-control"], input=command + "\\n", env=environment,
                          pass_fds=[directory], capture_output=True, text=True, timeout=20)
    return done.stdout.strip() + done.stderr.strip()
print(json.dumps({
    "event": "abuse",
    "uid": os.getuid(),
    "reached": os.path.exists(f"/proc/self/fd/{directory}/control"),
    "answers": [control(command) for command in ("get_server_list", "shutdown_server -f", "quit")],
}), flush=True)
time.sleep(3600)
"""
"""Root without a slot, and without capabilities: the MPS daemon itself would obey it."""


def pod_with_a_root_helper(tenant: Tenant, share: str) -> dict[str, Any]:
    pod = tenant.pod("leaky", share, command=["python3", "-c", LEAK])
    [app] = pod["spec"]["containers"]
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    helper = app | {
        "name": "helper",
        "command": ["python3", "-c", ABUSE],
        "resources": {},
        "securityContext": app["securityContext"] | {"runAsUser": 0, "runAsNonRoot": False},
    }
    pod["spec"]["containers"] = [app | shared, helper | shared]
    pod["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}]
    return pod


def test_root_beside_a_client_that_passes_its_pipe_directory_on_can_end_and_ask_nothing(harness: Harness) -> None:
    with harness.share("leaked", per_node=1) as share, harness.namespace(enforce="baseline") as tenant:
        names = tenant.neighbours("leaked", 2)
        daemon = daemon_of(harness, share)
        tenant.start(pod_with_a_root_helper(tenant, "leaked"))
        abuse = wait_for_abuse(tenant)
        assert (abuse["uid"], abuse["reached"]) == (0, True), "the attack was not carried out"
        assert abuse["answers"] == ["", "", ""]
        tenant.go_on(names)
        now = daemon_of(harness, share)
        assert (now["controlPid"], now["serverPid"]) == (daemon["controlPid"], daemon["serverPid"])


def wait_for_abuse(tenant: Tenant) -> dict[str, Any]:
    def said() -> list[dict[str, Any]]:
        text = tenant.kubectl("logs", "leaky", "--container=helper")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return wait_until("the attack", said, 90, lambda: tenant.explain("leaky"))[0]
