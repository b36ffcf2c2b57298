"""The demo on a cluster of one's own asks for images that the cluster can pull, before it touches anything."""

from pathlib import Path

import pytest

from localcluster.demo.__main__ import users_cluster
from localcluster.errors import LocalClusterError
from localcluster.stack import own

GOOD = "registry.example.com:5000/team/gpushare/operator:0.1.0"


@pytest.mark.parametrize(
    ("operator", "workload", "named"),
    [
        (None, GOOD, "OPERATOR_IMAGE is ''"),
        (GOOD, "", "WORKLOAD_IMAGE is ''"),
        ("registry.example.com:5000/operator", GOOD, "OPERATOR_IMAGE is 'registry.example.com:5000/operator'"),
        ("a/operator@sha256:0", GOOD, "OPERATOR_IMAGE is 'a/operator@sha256:0'"),
    ],
)
def test_an_image_that_is_missing_or_has_no_tag_is_named(operator: str | None, workload: str, named: str) -> None:
    given = {"OPERATOR_IMAGE": operator, "WORKLOAD_IMAGE": workload, "PATH": "", "KUBECONFIG": "/nowhere"}
    with pytest.raises(LocalClusterError, match="make images REGISTRY=") as refused:
        own({key: value for key, value in given.items() if value is not None})
    assert named in str(refused.value)


def test_images_with_a_tag_pass_and_the_cluster_is_asked() -> None:
    with pytest.raises(LocalClusterError, match="kubectl is not installed"):
        own({"OPERATOR_IMAGE": GOOD, "WORKLOAD_IMAGE": "localhost/workload:1", "PATH": "/nowhere"})


@pytest.mark.parametrize(("has_shares", "exists"), [("yes", "yes"), ("yes", ""), ("", "")])
def test_the_demo_leaves_a_users_share_of_its_name_alone(tmp_path: Path, has_shares: str, exists: str) -> None:
    crd, stored = '{"kind": "CustomResourceDefinition"}', '{"kind": "GpuShare"}'
    program = tmp_path / "kubectl"
    program.write_text(
        f"""#!/bin/sh
case "$*" in
  "get nodes"*) echo '{{"items": []}}' ;;
  *customresourcedefinition*) [ -z "{has_shares}" ] || echo '{crd}' ;;
  *"gpushare inference"*) [ -n "{has_shares}" ] || exit 1; [ -z "{exists}" ] || echo '{stored}' ;;
  *) exit 1 ;;
esac
"""
    )
    program.chmod(0o755)
    environment = {"OPERATOR_IMAGE": GOOD, "WORKLOAD_IMAGE": GOOD, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    if exists:
        with pytest.raises(LocalClusterError, match="delete yours first"):
            users_cluster(environment)
    else:
        assert users_cluster(environment).embedded is None
