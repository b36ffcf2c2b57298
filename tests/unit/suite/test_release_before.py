"""The release before as a tree of files: from any clone that has its commit, made once."""

import subprocess
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from tests.cluster.upgrade.before import BEFORE, commit_of, sources

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: `file` says old and new."""
    path = tmp_path / "clone"
    git(path.parent, "init", "--quiet", "clone")
    for text in ("old", "new"):
        (path / "file").write_text(text)
        git(path, "add", "file")
        git(path, *AUTHOR, "commit", "--quiet", "--message", text)
    return path


def git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=directory, check=True, timeout=30)


def test_the_tree_of_a_commit_is_unpacked_once(tmp_path: Path, repository: Path) -> None:
    tree = sources("HEAD~1", tmp_path, repository)
    assert (tree / "file").read_text() == "old"
    made = (tree / "file").stat().st_ino
    assert sources("HEAD~1", tmp_path, repository) == tree
    assert (tree / "file").stat().st_ino == made


def test_a_clone_without_the_commit_is_told_what_to_do(repository: Path) -> None:
    with pytest.raises(LocalClusterError, match="git fetch --unshallow"):
        commit_of("0" * 40, repository)


def test_the_release_before_is_named_by_a_whole_commit() -> None:
    text = BEFORE.read_text().strip()
    assert len(text) == 40
    assert set(text) <= set("0123456789abcdef")
