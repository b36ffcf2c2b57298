"""What the components are told: private directories, CDI, cgroups of the cluster's own, an audit that counts writes."""

import json
import tomllib
from pathlib import Path

import pytest

from localcluster.cluster import cgroups, components, config
from localcluster.cluster.layout import Layout
from localcluster.cluster.network import Network
from localcluster.cluster.node import backoff
from localcluster.programs.build import Binaries


@pytest.fixture
def layout() -> Layout:
    programs = Binaries(Path("/c/kube"), Path("/c/runtime"), Path("/c/helm"), Path("/c/pause"))
    return Layout("dev", Path("/s/dev"), Network(3), programs)


def test_containerd_reads_cdi_specs_from_the_two_standard_directories(layout: Layout) -> None:
    runtime = tomllib.loads(config.containerd(layout, "overlayfs"))["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["enable_cdi"] is True
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]


def test_containerd_uses_the_snapshotter_that_the_file_system_allows(layout: Layout) -> None:
    images = tomllib.loads(config.containerd(layout, "native"))["plugins"]["io.containerd.cri.v1.images"]
    assert images["snapshotter"] == "native"


def test_containerd_creates_nothing_in_opt(layout: Layout) -> None:
    assert "io.containerd.internal.v1.opt" in tomllib.loads(config.containerd(layout, "native"))["disabled_plugins"]


def test_pods_of_two_clusters_are_in_different_cgroups(layout: Layout) -> None:
    other = Layout("demo", layout.state, Network(4), layout.programs)
    assert config.kubelet(layout)["cgroupRoot"] == "/gpushare-dev"
    assert config.kubelet(other)["cgroupRoot"] == "/gpushare-demo"


def test_every_file_that_a_component_is_pointed_to_is_rendered(layout: Layout) -> None:
    rendered = config.files(layout, "overlayfs")
    arguments = " ".join(word for argv in components.commands(layout).values() for word in argv)
    named = {word.split("=")[-1] for word in arguments.split() if f"{layout.conf}/" in word}
    missing = {name for name in named if name.removeprefix(f"{layout.conf}/") not in rendered}
    assert all(name.endswith(".kubeconfig") for name in missing)


def test_every_component_is_started_exactly_once(layout: Layout) -> None:
    assert sorted(components.FIRST + components.THEN) == sorted(components.commands(layout))


def test_a_component_is_recognised_by_the_name_of_its_program(layout: Layout) -> None:
    assert all(Path(argv[0]).name == name for name, argv in components.commands(layout).items())


def test_the_audit_counts_each_request_once_and_never_holds_contents() -> None:
    policy = config.audit_policy()
    assert policy["omitStages"] == ["RequestReceived"]
    assert policy["rules"] == [{"level": "Metadata"}]


def test_rendered_yaml_is_json_too(layout: Layout) -> None:
    for name, text in config.files(layout, "overlayfs").items():
        if name.endswith(".yaml"):
            assert json.loads(text)["kind"]


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


def test_a_component_that_keeps_failing_is_started_ever_more_slowly_but_within_ten_seconds() -> None:
    waits = [backoff(failures) for failures in range(20)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == 10
