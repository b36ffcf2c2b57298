"""The label with which containers may use what they see of the node where SELinux is enforcing."""

import errno
import logging
import os
from pathlib import Path

import pytest

from gpushare.agent.gpus.container_labels import container_label, open_to_containers
from gpushare.agent.gpus.fronts import SONAMES, FrontLibraries
from gpushare.agent.reconcile.daemon_files import prepare
from gpushare.mps.layout import gpu_dir

RUN = "system_u:object_r:var_run_t:s0"
SHARED = "system_u:object_r:container_file_t:s0"


@pytest.mark.parametrize(
    ("sentence", "current", "expected"),
    [
        ("what is made in /run gets the type of containers' files", RUN, SHARED),
        ("and of that of the runtime's directories", "system_u:object_r:container_var_run_t:s0", SHARED),
        ("one container's own categories go", "system_u:object_r:var_run_t:s0:c1,c2", SHARED),
        ("the user stays", "unconfined_u:object_r:var_run_t:s0", "unconfined_u:object_r:container_file_t:s0"),
        ("a labelled one is left", SHARED, None),
        ("Bottlerocket's type of /run is left", "system_u:object_r:any_t:s0", None),
        ("Talos's type of /run is left", "system_u:object_r:run_t:s0", None),
        ("a policy without levels has no such label", "system_u:object_r:var_run_t", None),
        ("no label", "", None),
        ("what is no label", "unconfined", None),
    ],
)
def test_container_label(sentence: str, current: str, expected: str | None) -> None:
    assert container_label(current) == expected, sentence


class Node:
    """Answers xattr calls as a node's kernel does. `label` None: SELinux is off. `refuses`: errno of a change."""

    def __init__(self, label: str | None, refuses: int = 0) -> None:
        self.label, self.refuses = label, refuses

    def getxattr(self, path: Path, attribute: str) -> bytes:
        assert attribute == "security.selinux"
        if self.label is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self.label.encode() + b"\0"

    def setxattr(self, path: Path, attribute: str, value: bytes) -> None:
        assert attribute == "security.selinux"
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.label = value.decode()


@pytest.mark.parametrize(("before", "after"), [(RUN, SHARED), (SHARED, SHARED), (None, None)])
def test_a_directory_in_run_is_opened_to_containers(before: str | None, after: str | None) -> None:
    node = Node(before)
    open_to_containers(Path("attach"), node)
    assert node.label == after


def test_containers_may_use_what_they_see_of_the_nodes_files_and_no_more(tmp_path: Path) -> None:
    labelled: list[Path] = []
    directory, image, fronts = gpu_dir(tmp_path, "GPU-1"), tmp_path / "image", tmp_path / "fronts"
    prepare(directory, labelled.append)
    image.mkdir()
    for soname in SONAMES:
        (image / soname).touch()
    delivered = FrontLibraries(image, fronts, labelled.append).delivered(shows_grant=True, has_classes=False)
    assert labelled == [directory.attach, Path(delivered[SONAMES[0]]).parent]


def test_a_refused_label_is_told_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(RUN, refuses=errno.EACCES)
    with caplog.at_level(logging.WARNING):
        open_to_containers(Path("attach"), node)
    assert node.label == RUN
    assert "cannot be labelled system_u:object_r:container_file_t:s0 (Permission denied)" in caplog.text


def test_without_selinux_a_real_directory_is_left_alone(tmp_path: Path) -> None:
    open_to_containers(tmp_path)
    open_to_containers(tmp_path / "missing")
