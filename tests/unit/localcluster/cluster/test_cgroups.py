"""The cgroup hierarchies of version 1, version 2 and hybrid machines."""

from pathlib import Path

import pytest

from localcluster.cluster import cgroups

V1 = "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
UNIFIED = "33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
V2 = "30 25 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
OTHER = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        pytest.param([OTHER, V2], [("cgroup2", Path("/sys/fs/cgroup"))], id="version 2"),
        pytest.param([OTHER, V1], [("cgroup", Path("/sys/fs/cgroup/memory"))], id="version 1"),
        pytest.param(
            [V1, UNIFIED], [("cgroup", Path("/sys/fs/cgroup/memory"))], id="hybrid: version 1 has the controllers"
        ),
    ],
)
def test_pods_use_the_hierarchies_that_have_controllers(mounts: list[str], expected: list[cgroups.Hierarchy]) -> None:
    assert cgroups.used_by_pods(cgroups.hierarchies("\n".join(mounts))) == expected
