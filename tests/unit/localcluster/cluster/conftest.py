"""A cluster's layout with made-up paths."""

from pathlib import Path

import pytest

from localcluster.cluster.layout import Layout
from localcluster.cluster.network import Network
from localcluster.programs.build import Binaries


@pytest.fixture
def layout() -> Layout:
    programs = Binaries(Path("/c/kube"), Path("/c/runtime"), Path("/c/helm"), Path("/c/pause"))
    return Layout("dev", Path("/s/dev"), Network(3), programs)
