"""A release says what is inside: version, notes, packages, digests and checksums, or it is refused with the reason."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY
from release.__main__ import ReleaseError, check_chart, checksums, read_source, with_image
from release.changelog import NoSectionError, notes
from release.image_size import by_package, source_of
from release.oci import File
from release.packages import Contents, Package, debian_packages, front_libraries, locked_tools, python_distributions
from release.sbom import document

DIGEST = "sha256:" + "ab" * 32
CHANGELOG = """# Changelog

## [Unreleased]

### Added
- Something new.

## [0.2.0] - 2026-12-01
- Faster.
[0.2.0]: https://example.org

## 0.1.0
"""


def test_notes_are_the_section_of_the_version() -> None:
    assert notes(CHANGELOG, "0.2.0") == "- Faster.\n"
    assert notes(CHANGELOG, "Unreleased") == "### Added\n- Something new.\n"


@pytest.mark.parametrize(
    ("version", "words"), [("0.3.0", "no section"), ("0.1.0", "says nothing"), ("0.2", "no section")]
)
def test_a_version_without_notes_is_refused(version: str, words: str) -> None:
    with pytest.raises(NoSectionError, match=words):
        notes(CHANGELOG, version)


def test_the_changelog_of_this_repository_has_notes() -> None:
    assert notes((REPOSITORY / "CHANGELOG.md").read_text(), "Unreleased")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean tree at version 0.2.0."""
    chart = tmp_path / "charts" / "gpushare" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text('version: 0.2.0\nappVersion: "0.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def test_a_clean_tree_is_released_under_its_version(repository: Path) -> None:
    source = read_source(repository, preview=False)
    assert (source.version, source.notes) == ("0.2.0", "- Faster.\n")


def test_a_changed_tree_is_released_as_a_preview_only(repository: Path) -> None:
    (repository / "new.txt").write_text("x")
    with pytest.raises(ReleaseError, match=r"1 uncommitted changes[\s\S]*PREVIEW=1[\s\S]*new\.txt"):
        read_source(repository, preview=False)
    source = read_source(repository, preview=True)
    assert source.version == f"0.2.0-preview.g{source.commit[:12]}.changed"
    assert "Something new" in source.notes


def test_a_chart_of_another_version_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"appVersion: 0\.1\.0, pyproject\.toml says 0\.2\.0"):
        check_chart('version: 0.2.0\nappVersion: "0.1.0"\n', "0.2.0")


def test_the_chart_of_this_repository_can_carry_registry_and_digest() -> None:
    values = (REPOSITORY / "charts" / "gpushare" / "values.yaml").read_text()
    image = yaml.safe_load(with_image(values, "reg.example/team", DIGEST))["image"]
    assert (image["repository"], image["digest"]) == ("reg.example/team/gpushare/operator", DIGEST)
    with pytest.raises(ReleaseError, match="0 lines"):
        with_image("image:\n  tag: x\n", "reg.example/team", DIGEST)


def test_checksums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(checksums(tmp_path))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


TEXTS = {
    "var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
    "Description: C\n Homepage: none\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n",
    "var/lib/dpkg/info/libc6:amd64.list": "/.\n/lib/libc.so\n",
    "usr/share/doc/libc6/copyright": "Format: DEP-5\n\nFiles: *\nLicense: LGPL-2.1\n\nFiles: a\n"
    "License: GPL-2 or MIT\n text\n\nLicense: * Permission to use is granted.\n",
    "opt/lib/python3.13/site-packages/My_Pkg-1.0.dist-info/METADATA": "Name: My_Pkg\nVersion: 1.0\n"
    "License-Expression: MIT\nProject-URL: Homepage, https://example.org\n\ntext",
    "opt/lib/python3.13/site-packages/My_Pkg-1.0.dist-info/RECORD": "my_pkg/a.py,,\n../../../bin/tool,,\n",
}
LIBC = Package(
    "deb", "libc6", "2.36-9", "amd64", licence="(GPL-2 or MIT) AND LGPL-2.1", paths=frozenset({".", "lib/libc.so"})
)
FRONT = Package(
    "generic",
    "libcuda.so.1",
    "",
    licence="Apache-2.0",
    paths=frozenset({"opt/gpushare/lib/gpushare/libcuda.so.1"}),
    sha256="fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603",
)
MY_PKG = Package(
    "pypi",
    "my-pkg",
    "1.0",
    licence="MIT",
    homepage="https://example.org",
    paths=frozenset({"opt/lib/python3.13/site-packages/my_pkg/a.py", "opt/bin/tool"}),
)


def test_installed_packages_are_read_with_what_they_own() -> None:
    assert debian_packages(TEXTS) == [LIBC]
    assert python_distributions(TEXTS) == [MY_PKG]
    assert front_libraries({"opt/gpushare/lib/gpushare/libcuda.so.1": b"ab", "opt/gpushare/lib/x": b""}) == [FRONT]


def test_what_makes_an_image_is_read_from_its_lock() -> None:
    assert locked_tools("zig-lang==0.17.1 \\\n    --hash=sha256:ab\nb==2\n") == [
        Package("pypi", "zig-lang", "0.17.1"),
        Package("pypi", "b", "2"),
    ]
    assert locked_tools((REPOSITORY / "requirements" / "native.lock").read_text())[0].name == "ziglang"


def test_every_file_counts_once_and_byte_code_for_its_source() -> None:
    site = "opt/lib/python3.13/site-packages/my_pkg"
    files = [
        File("lib", 0, 0, target="usr/lib"),
        File("usr/lib/libc.so", 0, 1000),
        File(f"{site}/a.py", 0, 10),
        File(f"{site}/__pycache__/a.cpython-313.pyc", 0, 20),
        File("etc/nobody", 0, 5),
    ]
    assert by_package(files, [LIBC, MY_PKG]) == {"libc6": 1000, "my-pkg": 30}
    assert source_of("x/a.pyc") == "x/a.pyc"


def test_the_bill_of_materials_is_complete_and_reproducible() -> None:
    contents, tools = Contents("debian", "12", (LIBC, MY_PKG, FRONT)), [Package("pypi", "ziglang", "0.17.1")]
    text = document("gpushare-operator", "0.2.0", DIGEST, contents, 1_700_000_000, tools)
    assert text == document("gpushare-operator", "0.2.0", DIGEST, contents, 1_700_000_000, tools)
    bill = json.loads(text)
    assert {component["purl"] for component in bill["components"]} == {
        "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12",
        "pkg:pypi/my-pkg@1.0",
        f"pkg:generic/gpushare/libcuda.so.1?checksum=sha256:{FRONT.sha256}",
        "pkg:pypi/ziglang@0.17.1",
    }
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["ziglang"]["scope"] == "excluded"
    assert by_name["libcuda.so.1"]["hashes"] == [{"alg": "SHA-256", "content": FRONT.sha256}]
    assert by_name["libc6"]["licenses"] == [{"license": {"name": LIBC.licence}}]
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert by_name["my-pkg"]["licenses"] == [{"license": {"id": "MIT"}}]
