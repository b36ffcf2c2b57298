"""Being asked to end, at a moment at which nobody listens any more."""

import os
import subprocess
import sys

LATE = """
import atexit
from gpushare_workload.processes.stopping import Stop

asked = []
atexit.register(lambda: asked[0].ask())
asked.append(Stop())
"""


def test_who_is_asked_while_the_interpreter_ends_says_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
