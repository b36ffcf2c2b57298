"""A component's cache entry is named by its sources and its flags."""

import re
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.paths import SOURCES
from localcluster.programs import build


def test_changed_flags_make_another_entry(tmp_path: Path) -> None:
    other = build.Component("kube", "", (build.GoBuild(("-tags", "other"), (".",)),))
    assert build.kube_component("1.37").entry(tmp_path) != other.entry(tmp_path)


def test_each_kubernetes_is_an_entry_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    entries = {minor: build.binaries(tmp_path, minor).kube for minor in build.KUBERNETES}
    assert len(set(entries.values())) == len(build.KUBERNETES)
    assert build.binaries(tmp_path).kube == entries["1.37"]
    assert build.kubernetes_minor({build.KUBERNETES_SETTING: "1.36"}) == "1.36"
    with pytest.raises(LocalClusterError, match=r"GPUSHARE_KUBERNETES='1\.12': there are 1\.37, 1\.36"):
        build.kubernetes_minor({build.KUBERNETES_SETTING: "1.12"})


@pytest.mark.parametrize("minor", build.KUBERNETES)
def test_a_kubernetes_is_built_from_modules_of_its_own_version(minor: str) -> None:
    version, kube = build.KUBERNETES[minor], build.kube_component(minor)
    modules = (SOURCES / "kube" / f"{kube.module}.mod").read_text()
    assert f"k8s.io/kubernetes v{version}\n" in modules
    staged = set(re.findall(r"^\s*k8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$", modules, re.M))
    assert staged == {version.removeprefix("1.")}


@pytest.mark.parametrize(
    ("component", "module"),
    [
        (build.kube_component("1.37"), "k8s.io/kubernetes"),
        (build.HELM, "helm.sh/helm/v4"),
        (build.KUEUE, "sigs.k8s.io/kueue"),
    ],
    ids=lambda item: getattr(item, "name", item),
)
def test_a_program_calls_itself_by_the_version_of_its_sources(component: build.Component, module: str) -> None:
    (version,) = re.findall(
        rf"^\s*(?:require )?{module} (v\S+)$", (SOURCES / component.name / "go.mod").read_text(), re.M
    )
    assert any(f"={version}" in " ".join(build.flags) for build in component.builds)
