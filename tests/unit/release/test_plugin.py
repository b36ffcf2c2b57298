"""The plugin as one file: it holds what it imports, at the lock's versions, and unpacks itself once."""

import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
import yaml

from localcluster.paths import REPOSITORY
from release import krew, plugin, unpack

IMPORTS = """
import importlib, pkgutil, sys
import gpushare.kubectl as room
for module in pkgutil.walk_packages(room.__path__, "gpushare.kubectl."):
    if not module.name.startswith("gpushare.kubectl.page."):  # a pod serves the page, too, by other packages
        importlib.import_module(module.name)
import gpushare.controller.cache.fleet_cache, gpushare.controller.cache.resync
import gpushare.kubectl.trial.command, gpushare.kubectl.page.command
import prometheus_client.parser
print("\\n".join(sys.modules))
"""
IMPORTED_AS = {"pyyaml": "yaml"}
OF_THE_MACHINE = {"cython_runtime", "sitecustomize", "usercustomize"}
"""Debian's Python, say, imports the second at its start."""


def test_what_the_plugin_imports_is_what_its_file_holds() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60, check=True)
    modules = done.stdout.split()
    ours = {module.replace(".", "/") for module in modules if module.startswith("gpushare.")}
    single = {f"gpushare/{name}".removesuffix("/__init__.py").removesuffix(".py") for name in plugin.MODULES}
    places = tuple(f"gpushare/{package}/" for package in plugin.PACKAGES)
    assert [module for module in ours - single if not (module + "/").startswith(places)] == []
    held = {IMPORTED_AS.get(name, name).replace("-", "_") for name in plugin.REQUIRED}
    others = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - OF_THE_MACHINE
    assert {name for name in others if name.isidentifier() and not name.startswith(("_", "gpushare"))} == held


def test_every_distribution_is_pinned_with_its_hashes() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    text = plugin.pinned(lock, plugin.REQUIRED)
    assert text.count("==") == len(plugin.REQUIRED)
    assert text.count("--hash=sha256:") > len(plugin.REQUIRED)
    with pytest.raises(plugin.PluginError, match="has no nothing-such"):
        plugin.pinned(lock, ["nothing-such"])


def program(folder: Path, *names: str) -> Path:
    path = folder / "program"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


TAG = sys.implementation.cache_tag


def test_it_unpacks_what_is_for_this_python_and_nothing_beside_it(tmp_path: Path) -> None:
    mine, others = f"inside/a.{TAG}-x.so", "inside/a.cpython-27-x.so"
    path = program(tmp_path, "__main__.py", "inside/a.py", "inside/a.abi3.so", mine, others)
    into = tmp_path / "cache" / "one"
    unpack.unpack(path, into)
    assert {path.name for path in into.iterdir()} == {"a.py", "a.abi3.so", f"a.{TAG}-x.so"}
    assert [path.name for path in into.parent.iterdir()] == ["one"]


def test_of_two_calls_at_once_the_second_takes_what_the_first_has_unpacked(tmp_path: Path) -> None:
    path, into = program(tmp_path, "inside/a.py"), tmp_path / "one"
    into.mkdir()
    (into / "first").touch()
    unpack.unpack(path, into)
    assert [path.name for path in into.iterdir()] == ["first"]


def test_what_cannot_be_unpacked_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    with pytest.raises(OSError, match="inside"):
        unpack.unpack(program(tmp_path, "other/a.py"), tmp_path / "cache" / "one")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = plugin.digest(tmp_path)
    assert plugin.digest(tmp_path) == first
    (tmp_path / "a").write_text("2")
    assert plugin.digest(tmp_path) != first
    (tmp_path / "a").write_text("1")
    (tmp_path / "a").rename(tmp_path / "b")
    assert plugin.digest(tmp_path) != first


def test_the_manifest_of_krew_names_each_platforms_archive_by_its_checksum() -> None:
    manifest = yaml.safe_load(krew.manifest("1.2.3", dict.fromkeys(plugin.PLATFORMS, "ab" * 32)))
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("gpushare", "v1.2.3")
    assert manifest["spec"]["platforms"][0]["selector"] == {"matchLabels": {"os": "linux", "arch": "amd64"}}
    for platform in manifest["spec"]["platforms"]:
        assert platform["bin"] == "kubectl-gpushare"
        assert platform["uri"].endswith(".tar.gz")
        assert platform["sha256"] == "ab" * 32
    assert len(manifest["spec"]["shortDescription"]) <= 60


def test_an_archive_is_the_same_each_time_and_the_program_can_be_run() -> None:
    files = {"b": (b"1", 0o755), "a": (b"2", 0o644)}
    packed = krew.archive(files)
    assert packed == krew.archive(dict(reversed(files.items())))
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        assert [(member.name, member.mode) for member in tar.getmembers()] == [("a", 0o644), ("b", 0o755)]
