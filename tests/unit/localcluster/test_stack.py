"""The demo on a cluster of one's own asks for images that the cluster can pull, before it touches anything."""

from pathlib import Path

import pytest

from localcluster.demo.__main__ import users_cluster
from localcluster.demo.run import agent_events
from localcluster.errors import LocalClusterError
from localcluster.images.buildah import TARGETS
from localcluster.images.publish import Published, next_steps
from localcluster.kubectl import Object
from localcluster.stack import image_values, own

DIGEST = "sha256:" + "0f" * 32
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


def test_an_image_as_it_is_printed_after_a_push_is_taken_by_the_demo() -> None:
    pushed = {target: Published(f"registry.example.com/gpushare/{target}", "0.1.0", DIGEST) for target in TARGETS}
    printed = next(line for line in next_steps(pushed, "") if line.startswith("sed"))
    workload = printed.split("|")[2]
    assert workload.endswith(f":0.1.0@{DIGEST}")
    with pytest.raises(LocalClusterError, match="kubectl is not installed"):
        own({"OPERATOR_IMAGE": f"{GOOD}@{DIGEST}", "WORKLOAD_IMAGE": workload, "PATH": "/nowhere"})


@pytest.mark.parametrize(("image", "digest"), [(GOOD, ""), (f"{GOOD}@{DIGEST}", DIGEST)])
def test_a_digest_of_before_does_not_stay_and_a_given_one_counts(image: str, digest: str) -> None:
    assert image_values(image) == [
        "--set=image.repository=registry.example.com:5000/team/gpushare/operator",
        "--set-string=image.tag=0.1.0",
        f"--set=image.digest={digest}",
    ]


def test_the_demo_tells_the_agents_events_in_the_order_in_which_they_came() -> None:
    def event(reason: str, at: str, by: str = "gpushare-agent", created: str = "2026-11-28T10:00:00Z") -> Object:
        moment = {"eventTime": at} if at else {"eventTime": None}
        return {
            "metadata": {"creationTimestamp": created}, "reason": reason, "message": reason.lower(),
            "reportingComponent": by, **moment,
        }  # fmt: skip

    listed = [
        event("ClientTerminated", "2026-11-28T10:00:04.500000Z"),
        event("Killing", "2026-11-28T10:00:01.000000Z", by="kubelet"),
        event("GpuPartGranted", "", created="2026-11-28T10:00:02Z"),
        event("Departing", "2026-11-28T10:00:03.000000Z"),
    ]
    reasons = ["GpuPartGranted", "Departing", "ClientTerminated"]
    assert agent_events(listed) == [{"reason": reason, "message": reason.lower()} for reason in reasons]


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
