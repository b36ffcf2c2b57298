"""The configuration files: private directories, CDI, cgroups of the cluster's own, an audit that counts writes."""

import json
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from localcluster.cluster import components, config
from localcluster.cluster.layout import Layout
from localcluster.cluster.network import Network


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


def test_the_audit_counts_each_request_once_and_never_holds_contents() -> None:
    policy = config.audit_policy()
    assert policy["omitStages"] == ["RequestReceived"]
    assert policy["rules"] == [{"level": "Metadata"}]


def test_rendered_yaml_is_json_too(layout: Layout) -> None:
    for name, text in config.files(layout, "overlayfs").items():
        if name.endswith(".yaml"):
            assert json.loads(text)["kind"]


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (["CAP_SYS_RESOURCE"], []),
        (["CAP_SYS_RESOURCE", "CAP_SETUID"], ["CAP_SETUID"]),
        (["CAP_SETUID", "CAP_SYS_RESOURCE"], ["CAP_SETUID"]),
        (["CAP_SETUID"], ["CAP_SETUID"]),
    ],
)
def test_a_container_gets_no_capability_that_the_machine_has_not(
    layout: Layout, tmp_path: Path, asked: list[str], left: list[str]
) -> None:
    layout = replace(layout, programs=replace(layout.programs, runtime=tmp_path))
    script, runc, bundle = tmp_path / "script", tmp_path / "runc", tmp_path / "config.json"
    script.write_text(config.files(layout, "native")["runc"])
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    bundle.write_text(json.dumps({"bounding": asked}, separators=(",", ":")))
    words = ("create", "--bundle", str(tmp_path), "id")
    done = subprocess.run(["sh", script, *words], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == list(words)
    assert json.loads(bundle.read_text())["bounding"] == (asked if _has_sys_resource() else left)


def _has_sys_resource() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    return bool(next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd")) & 1 << 24)
