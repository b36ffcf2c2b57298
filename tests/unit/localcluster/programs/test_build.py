"""A component's cache entry is named by its sources and its flags."""

from pathlib import Path

from localcluster.programs import build


def test_changed_flags_make_another_entry(tmp_path: Path) -> None:
    other = build.Component("kube", "", (build.GoBuild(("-tags", "other"), (".",)),))
    assert build.KUBE.entry(tmp_path) != other.entry(tmp_path)
