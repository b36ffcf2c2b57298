"""Who on the machine reads a cluster's files."""

import stat
from dataclasses import replace
from pathlib import Path

from localcluster.cluster.layout import Layout


def test_keys_settings_and_logs_are_for_nobody_else(tmp_path: Path, layout: Layout) -> None:
    layout = replace(layout, state=tmp_path)
    layout.make_directories()
    for directory in layout.private:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
