"""The Python that the simulated programs find."""

import os
import sys
from pathlib import Path

# They are run thousands of times, by `python3` of the PATH. Where that is pyenv's shell script, it takes six times as
# long to start as the interpreter itself.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
