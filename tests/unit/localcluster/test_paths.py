"""The places of cache and state, and which cluster names are refused."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import cluster
from localcluster.cluster.layout import load
from localcluster.errors import LocalClusterError
from localcluster.paths import cache_root, require_own, state_dir


@pytest.mark.parametrize("name", ["", "Dev", "1a", "a_b", "../x", "a" * 17])
def test_an_unusable_cluster_name_is_refused_with_its_value(name: str) -> None:
    with pytest.raises(LocalClusterError, match="cluster name"):
        state_dir(name, {})


def test_a_state_directory_too_deep_for_sockets_is_refused() -> None:
    with pytest.raises(LocalClusterError, match="shorter directory"):
        state_dir("dev", {"GPUSHARE_STATE": "/var/tmp/" + "deep/" * 12})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"GPUSHARE_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/gpushare"),
        ({"HOME": "/h"}, "/h/.cache/gpushare"),
        ({"GPUSHARE_CACHE": "", "HOME": "/h"}, "/h/.cache/gpushare"),
    ],
)
def test_the_cache_lies_where_the_user_wants_it(env: dict[str, str], expected: str) -> None:
    assert str(cache_root(env)) == expected


@pytest.fixture
def short_path() -> Iterator[Path]:
    """pytest's own is too long for the sockets of a cluster."""
    with tempfile.TemporaryDirectory(prefix="g") as directory:
        yield Path(directory)


def _planted(short_path: Path) -> Path:
    """What another user left where the state is to be: a record of a cluster, whose programs root would start."""
    root = short_path / "gpushare"
    (root / "dev").mkdir(parents=True)
    (root / "dev" / "cluster.json").write_text('{"name": "dev", "index": 5}')
    return root


def _belongs_to_another(short_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user")
    root = _planted(short_path)
    os.chown(root, 65534, 65534)
    return root


def _is_open_to_all(short_path: Path) -> Path:
    root = _planted(short_path)
    root.chmod(0o1777)
    return root


def _is_a_link(short_path: Path) -> Path:
    link = short_path / "link"
    link.symlink_to(_planted(short_path))
    return link


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_belongs_to_another, "belongs to UID 65534"),
        (_is_open_to_all, "can be written by others"),
        (_is_a_link, "is no directory"),
    ],
)
def test_a_state_that_another_user_made_first_is_never_used(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], words: str
) -> None:
    monkeypatch.setenv("GPUSHARE_STATE", str(make(short_path)))
    for use in (lambda: load("dev"), cluster.names_running, lambda: cluster.names_matching("d*")):
        with pytest.raises(LocalClusterError, match=words):
            use()


def test_a_state_of_our_own_or_none_yet_is_used(short_path: Path) -> None:
    require_own(short_path / "none")
    require_own(_planted(short_path))
