"""What an image loses: nothing that a program or a library that stays needs."""

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from release.slim import compile_library, kept_packages, linked_libraries, parse_status, unneeded

LIBC = Path("/usr/lib/libc.so")
SSL = Path("/usr/lib/libssl.so")
CRYPTO = Path("/usr/lib/libcrypto.so")
PERL = Path("/usr/bin/perl")
PYTHON_SSL = Path("/usr/lib/python3.11/lib-dynload/_ssl.so")
FILES = {
    "libc6": [LIBC],
    "libpython3.11-stdlib": [PYTHON_SSL],
    "libssl3": [SSL],
    "libcrypto3": [CRYPTO],
    "perl-base": [PERL],
    "python3-pip": [Path("/usr/bin/pip3")],
}
LINKS = {PYTHON_SSL: [SSL, LIBC], SSL: [CRYPTO, LIBC], PERL: [LIBC]}


def test_a_package_stays_by_name_or_by_a_linked_library() -> None:
    kept = kept_packages(FILES, [], lambda path: LINKS.get(path, []))
    assert kept == {"libc6", "libpython3.11-stdlib", "libssl3", "libcrypto3"}


@pytest.mark.parametrize(("shell", "stay"), [(True, {"dash", "coreutils", "libselinux1"}), (False, set())])
def test_a_shell_stays_with_what_it_links_only_where_it_is_wanted(shell: bool, stay: set[str]) -> None:
    programs, library = {"dash": [Path("/usr/bin/sh")], "coreutils": [Path("/usr/bin/env")]}, Path("/usr/lib/libse.so")
    files = {**FILES, **programs, "libselinux1": [library], "bash": [Path("/usr/bin/bash")], "apt": [Path("/bin/apt")]}
    links = LINKS | {Path("/usr/bin/env"): [library, LIBC]}
    kept = kept_packages(files, [], lambda path: links.get(path, []), shell)
    assert kept == {"libc6", "libpython3.11-stdlib", "libssl3", "libcrypto3"} | stay


def test_a_library_that_no_package_owns_is_no_reason_to_fail() -> None:
    assert kept_packages({"libc6": [LIBC]}, [], lambda path: [Path("/opt/own.so")]) == {"libc6"}


def test_what_a_python_of_no_package_links_stays() -> None:
    python = Path("/usr/local/bin/python3.13")
    links = LINKS | {python: [SSL, LIBC]}
    assert "libssl3" in kept_packages(FILES, [python], lambda path: links.get(path, []))


def test_a_package_that_was_removed_but_configured_is_not_installed() -> None:
    status = (
        "Package: dash\nStatus: install ok installed\nVersion: 1\n\n"
        "Package: perl\nStatus: deinstall ok config-files\nVersion: 5\n"
    )
    assert list(parse_status(status)) == ["dash"]


def test_what_python_links_is_found(tmp_path: Path) -> None:
    import _ctypes

    assert any(path.name.startswith("libffi.so") for path in linked_libraries(Path(_ctypes.__file__)))
    text = tmp_path / "text"
    text.write_text("no program")
    assert linked_libraries(text) == set()


def test_pythons_library_is_compiled_without_source_checks(tmp_path: Path) -> None:
    compiled, bare = tmp_path / "compiled.py", tmp_path / "package" / "bare.py"
    bare.parent.mkdir()
    for module in (compiled, bare):
        module.write_text("VALUE = 1")
    before = Path(py_compile.compile(str(compiled), doraise=True) or "")
    content = before.read_bytes()
    compile_library(tmp_path)
    assert before.read_bytes() == content
    flags = Path(importlib.util.cache_from_source(str(bare))).read_bytes()[4:8]
    assert int.from_bytes(flags, "little") == 0b01, "by the hash of its source, which is not checked"


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("websocket/tests/test_app.py", True),
        ("aiohttp/_http_parser.pyx", True),
        ("aiohttp/_http_parser.cpython-311-x86_64-linux-gnu.so", False),
        ("aiohttp/test_utils.py", False),
        ("gpushare/py.typed", False),
        ("kubernetes/client/models/v1_pod.py", True),
        ("kubernetes/aio/client/api/core_v1_api.py", True),
        ("kubernetes/aio/client/models/__init__.py", False),
        ("kubernetes/aio/client/api_client.py", False),
    ],
)
def test_of_python_packages_only_what_serves_development_goes(path: str, goes: bool) -> None:
    assert unneeded(path) is goes


_WITHOUT_WHAT_SLIM_REMOVES = """
import asyncio, sys
from release.slim import unneeded

class Removed:
    def find_spec(self, name, path=None, target=None):
        if unneeded(name.replace(".", "/") + ".py"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Removed())
import gpushare.cli.operator, gpushare.controller.handlers, gpushare.cli.webhook, gpushare.agent.run
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from gpushare.kube.client import NODES, Kube
from gpushare.kube.session import ApiSession

async def main():
    async def answer(request):
        return web.json_response({})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kube = Kube(ApiSession(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"), "test"))
    await kube.patch(NODES, "n", {"spec": {}}, manager="m")
    await kube.close()
    await runner.cleanup()

asyncio.run(main())
"""


def test_no_part_needs_the_generated_classes_of_the_kubernetes_client() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_WHAT_SLIM_REMOVES], check=True, timeout=60, cwd=REPOSITORY)
