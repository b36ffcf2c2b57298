"""Paths of the node are looked up in the node, whatever links it has."""

from pathlib import Path

import pytest

from tests.cluster.harness import within


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a node whose links are as a Debian's, and lead nowhere on this machine."""
    (tmp_path / "run-of-the-node" / "cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run-of-the-node")
    (tmp_path / "var" / "near").symlink_to("run/cdi")
    (tmp_path / "var" / "round").symlink_to("round")
    return tmp_path


@pytest.mark.parametrize("path", ["/var/run/cdi", "/run-of-the-node/cdi", "/var/near"])
def test_a_link_is_followed_within_the_node(root: Path, path: str) -> None:
    assert within(root, path) == root / "run-of-the-node" / "cdi"


def test_a_link_of_the_kernels_own_is_left_to_it(root: Path) -> None:
    (root / "proc" / "1").mkdir(parents=True)
    (root / "proc" / "1" / "root").symlink_to("/")
    assert within(root, "/proc/1/root/etc") == root / "proc" / "1" / "root" / "etc"


def test_what_is_not_there_has_a_path_in_the_node_too(root: Path) -> None:
    assert within(root, "/var/run/later/x") == root / "run-of-the-node" / "later" / "x"


def test_links_that_lead_in_a_circle_are_an_error(root: Path) -> None:
    with pytest.raises(OSError, match="symbolic links"):
        within(root, "/var/round")
