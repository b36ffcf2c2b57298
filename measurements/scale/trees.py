"""The work trees that a script compares."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.paths import REPOSITORY


@contextmanager
def trees(before: str, scratch: Path) -> Iterator[dict[str, Path]]:
    """`before`: that commit, in a git worktree below `scratch` for as long as the block runs; left out where it is
    empty. And `after`: this work tree.
    """
    if not before:
        yield {"after": REPOSITORY}
        return
    tree = scratch / "before"
    subprocess.run(["git", "worktree", "add", "--detach", str(tree), before], cwd=REPOSITORY, check=True)
    try:
        yield {"before": tree, "after": REPOSITORY}
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=REPOSITORY, check=False)
