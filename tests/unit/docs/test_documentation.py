"""The documentation says what the code says: every reason has its line, the README's examples are those that we run."""

import re
from pathlib import Path

import pytest
import yaml

from gpushare.api import crd, reference
from gpushare.api.conditions import DaemonReason, GpuReason, ShareReason
from localcluster.paths import REPOSITORY

TROUBLESHOOTING = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
README = (REPOSITORY / "README.md").read_text()


@pytest.mark.parametrize("reason", [*ShareReason, *GpuReason, *DaemonReason])
def test_every_reason_is_explained(reason: str) -> None:
    assert f"| `{reason}` |" in TROUBLESHOOTING


@pytest.mark.parametrize("file", ["examples/inference.yaml", "examples/pod.yaml"])
def test_the_readmes_examples_are_the_files_that_are_run(file: str) -> None:
    block = re.search(rf"<!-- {re.escape(file)} -->\n```yaml\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1] == (REPOSITORY / file).read_text()
    assert yaml.safe_load(block[1])["kind"] in ("GpuShare", "Pod")


@pytest.mark.parametrize("page", [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "README.md"])
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_api_reference_is_current() -> None:
    assert (REPOSITORY / "docs" / "api.md").read_text() == reference.markdown(crd.definitions()), "run make crds"
