"""Measurements on a real GPU, from the root of the work tree: `python3 -m measurements.gpu.mps.attach.starts OUT.json`.

Nothing of ours needs to be installed: what is imported comes from this work tree, here and in every program that is
started. What the caller's PYTHONPATH names is found after it: on a bare machine packages of others may lie there.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = [str(ROOT), str(ROOT / "operator"), str(ROOT / "workload")]
sys.path[:0] = _FOLDERS
_CALLERS = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*_FOLDERS, *_CALLERS]))
