"""From inside a client container: a read-only directory with `control` alone, and no way to change a limit."""

import json

from tests.cluster.harness import Harness

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


def test_the_control_directory_is_read_only_and_holds_control_alone(harness: Harness) -> None:
    with harness.share("view", per_node=1), harness.namespace() as tenant:
        tenant.start(tenant.pod("looker", "view", command=["python", "-c", PROBE]))
        seen = tenant.wait_event("looker", "view")
        assert seen["entries"] == ["control"]
        assert seen["written"] == "Read-only file system"
        assert seen["pipe"] == PIPE
        assert seen["nvidia"] == "void"
        assert seen["run"] == ["mps"]


def test_a_client_can_neither_change_limits_nor_end_the_daemon(harness: Harness) -> None:
    with harness.share("locked", per_node=1), harness.namespace() as tenant:
        tenant.start(tenant.pod("changer", "locked", command=["python", "-c", CHANGE]))
        seen = tenant.wait_event("changer", "change")
        assert "Insufficient privileges" in seen["set"], json.dumps(seen)
        assert "Not enough privilege" in seen["quit"]
        assert seen["get"] == "50.0", "the daemon's limit is the share's ceiling"
