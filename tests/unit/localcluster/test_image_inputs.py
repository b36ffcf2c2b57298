"""What goes into an image decides whether it is rebuilt; the machine's settings reach the build and not the image."""

import pytest

from localcluster import packages
from localcluster.errors import LocalClusterError
from localcluster.images import pipconf, rootfs
from localcluster.images.buildah import copied_sources
from localcluster.programs import golang


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("COPY operator/ /src/operator/", ["operator"], id="a directory"),
        pytest.param("COPY a.toml b.lock /src/", ["a.toml", "b.lock"], id="several files"),
        pytest.param("COPY --chown=1:1 a /b", ["a"], id="options are no sources"),
        pytest.param("COPY a \\\n  b \\\n  /c/", ["a", "b"], id="continued lines"),
        pytest.param("COPY --from=build /x /y", [], id="other stages are no input"),
        pytest.param("RUN echo COPY a b", [], id="other instructions are no input"),
        pytest.param("ADD ./a /b", ["a"], id="ADD counts too"),
    ],
)
def test_what_the_dockerfile_copies_is_an_input(line: str, expected: list[str]) -> None:
    assert copied_sources(line) == expected


@pytest.mark.parametrize("line", ["COPY *.py /x/", 'COPY ["a", "b"]', "COPY $SRC /x"])
def test_a_copy_that_cannot_be_read_is_refused_instead_of_missed(line: str) -> None:
    with pytest.raises(LocalClusterError, match="name the paths"):
        copied_sources(line)


LISTING = """:env:.index-url='https://user@mirror/simple'
:env:.find-links='/opt/wheels'
global.index-url='https://other/simple'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.cache-dir='/root/.cache/pip'
freeze.timeout='10'
"""


def test_pip_settings_of_the_environment_outrank_files_as_in_pip() -> None:
    assert pipconf.settings(LISTING)["index-url"] == "https://user@mirror/simple"


def test_pip_settings_that_only_fit_the_machine_are_left_behind() -> None:
    assert set(pipconf.settings(LISTING)) == {"index-url", "find-links", "cert"}


def test_local_paths_of_pip_settings_are_mounted_except_the_certificates_of_every_base() -> None:
    assert [str(path) for path in pipconf.named_paths(pipconf.settings(LISTING))] == ["/opt/wheels"]


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


def test_no_usable_source_is_said_by_an_empty_text() -> None:
    assert rootfs.apt_sources([("x.list", "deb http://cloud/apt other main")], "bookworm") == ""


def test_only_packages_whose_tools_are_missing_are_installed() -> None:
    found = packages.missing_packages(
        lambda command: command != "nft", lambda library: False, lambda module: True, lambda file: True
    )
    assert found == ["libseccomp-dev", "nftables"]


def test_the_go_tool_chain_must_satisfy_every_module() -> None:
    assert golang.needed_version(["module a\n\ngo 1.26.0\n", "go 1.26.6\n"]) == (1, 26, 6)


@pytest.mark.parametrize(
    ("output", "expected"), [("go1.26.8", (1, 26, 8)), ("go version go1.27.1 linux/amd64", (1, 27, 1)), ("devel", ())]
)
def test_the_version_of_an_installed_go_is_read(output: str, expected: tuple[int, ...]) -> None:
    assert golang.installed_version(output) == expected
