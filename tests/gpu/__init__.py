"""Measurements on a real GPU, started from the root of the work tree: `python3 -m tests.gpu.mps.starts OUT.json`.

Nothing of ours needs to be installed: imports come from this work tree, and those of the programs that get PYTHONPATH.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [str(ROOT), str(ROOT / "operator"), str(ROOT / "workload")]
PYTHONPATH = os.pathsep.join([*_FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
"""Before what was there: on a bare machine other packages may have been put there."""
sys.path[:0] = _FOLDERS
