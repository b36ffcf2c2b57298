"""A component's cache entry is named by its sources and its flags."""

import re
from pathlib import Path

import pytest

from localcluster.paths import SOURCES
from localcluster.programs import build


def test_changed_flags_make_another_entry(tmp_path: Path) -> None:
    other = build.Component("kube", "", (build.GoBuild(("-tags", "other"), (".",)),))
    assert build.KUBE.entry(tmp_path) != other.entry(tmp_path)


@pytest.mark.parametrize(
    ("component", "module"),
    [(build.KUBE, "k8s.io/kubernetes"), (build.HELM, "helm.sh/helm/v4"), (build.KUEUE, "sigs.k8s.io/kueue")],
    ids=lambda item: getattr(item, "name", item),
)
def test_a_program_calls_itself_by_the_version_of_its_sources(component: build.Component, module: str) -> None:
    (version,) = re.findall(
        rf"^\s*(?:require )?{module} (v\S+)$", (SOURCES / component.name / "go.mod").read_text(), re.M
    )
    assert any(f"={version}" in " ".join(build.flags) for build in component.builds)
