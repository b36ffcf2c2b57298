"""Images get the names that examples and chart use, or those of the reader's own registry, by digest."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from localcluster.errors import LocalClusterError
from localcluster.images import names
from localcluster.images.buildah import TARGETS
from localcluster.images.publish import Published, next_steps
from localcluster.paths import REPOSITORY

IMAGES = {
    target: Published(f"reg.example/team/gpushare/{target}", "0.1.0", f"sha256:{number * 64}")
    for target, number in zip(TARGETS, "12", strict=True)
}
EXAMPLES = [
    REPOSITORY / "examples" / "pod.yaml",
    *sorted(path for path in (REPOSITORY / "workload" / "examples").glob("[!f]*/*.yaml") if path.stem != "ddp"),
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_the_image_that_the_local_cluster_has(path: Path) -> None:
    named = set(re.findall(r"^ *image: (\S+)$", path.read_text(), re.MULTILINE))
    assert named == {names.placeholder("workload")}


def test_the_chart_names_the_image_that_the_local_cluster_has() -> None:
    values = yaml.safe_load((REPOSITORY / "charts" / "gpushare" / "values.yaml").read_text())["image"]
    chart = yaml.safe_load((REPOSITORY / "charts" / "gpushare" / "Chart.yaml").read_text())
    assert f"{values['repository']}:{values['tag'] or chart['appVersion']}" == names.placeholder("operator")


@pytest.mark.parametrize("registry", ["registry.example.com", "localhost:5000", "10.0.0.1:5000/a/b-c", "ghost/team_x"])
def test_a_registry_is_a_host_with_port_and_path(registry: str) -> None:
    assert names.checked_registry(registry) == registry


@pytest.mark.parametrize(
    "registry", ["", "https://a", "a/", "A", "a b", "a:port", "--tls-verify=false", "a/../b", "a" * 201]
)
def test_anything_else_is_refused_with_the_name_of_the_setting(registry: str) -> None:
    with pytest.raises(LocalClusterError, match="REGISTRY="):
        names.checked_registry(registry)


def test_the_printed_sed_puts_the_pushed_image_into_the_example(tmp_path: Path) -> None:
    (command,) = [line for line in next_steps(IMAGES, "cupy-cuda12x") if line.startswith("sed")]
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "pod.yaml").write_text((REPOSITORY / "examples" / "pod.yaml").read_text())
    argv = shlex.split(command.partition(" | ")[0])
    changed = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=10, check=True).stdout
    (container,) = yaml.safe_load(changed)["spec"]["containers"]
    assert container["image"] == f"reg.example/team/gpushare/workload:0.1.0@sha256:{'2' * 64}"


def test_an_image_without_cupy_is_told_so() -> None:
    assert ["CuPy" in " ".join(next_steps(IMAGES, cupy)) for cupy in ("", "cupy-cuda13x")] == [True, False]
