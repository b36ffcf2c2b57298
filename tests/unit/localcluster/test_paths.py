"""The places of cache and state, and which cluster names are refused."""

import pytest

from localcluster.errors import LocalClusterError
from localcluster.paths import cache_root, state_dir


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
