"""The base image is made from the release's own package sources."""

from localcluster.images import rootfs

DEB822 = """Types: deb
# a comment
URIs: http://mirror/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb deb-src
URIs: http://third.party/apt
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://mirror/old
Suites: bookworm
Components: main
"""


def test_the_base_image_uses_the_releases_own_sources_and_no_third_partys() -> None:
    files = [
        ("debian.sources", DEB822),
        ("x.list", "deb http://cloud/apt cloud-bookworm main\n# deb http://no bookworm main"),
    ]
    assert rootfs.apt_sources(files, "bookworm").splitlines() == [
        "deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror/debian bookworm main",
        "deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror/debian bookworm-updates main",
    ]


def test_one_line_sources_with_options_are_understood() -> None:
    line = "deb [arch=amd64 signed-by=/k.gpg] http://mirror/ubuntu noble main universe"
    assert rootfs.apt_sources([("sources.list", line)], "noble").strip() == line


def test_without_a_usable_source_the_text_is_empty() -> None:
    assert rootfs.apt_sources([("x.list", "deb http://cloud/apt other main")], "bookworm") == ""
