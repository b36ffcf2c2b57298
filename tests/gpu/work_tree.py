"""A script that is run by its path imports this first: all later imports then come from this work tree."""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "operator"), str(ROOT / "workload")]
# A package of that name among the machine's own would be found before a folder without __init__.py.
sys.modules["tests"] = tests = ModuleType("tests")
tests.__path__ = [str(ROOT / "tests")]
