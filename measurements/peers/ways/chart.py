"""A peer's Helm chart: installed, and what its containers say where there is no GPU."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster.kubectl import CommandError, Kubectl
from tests.cluster.harness import Harness, wait_until

INSTALL_SECONDS = 90


def install(harness: Harness, release: str, chart: Path, values: Mapping[str, Any], wait: bool) -> None:
    """Into a namespace of the release's name. `wait`: until its pods are ready, which they never are without a GPU."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        until_ready = ["--wait", f"--timeout={INSTALL_SECONDS}s"] if wait else []
        harness.stack.helm(
            "upgrade", "--install", release, str(chart), "--namespace", release,
            "--create-namespace", f"--values={file.name}", *until_ready,
        )  # fmt: skip


def last_words(harness: Harness, release: str, container: str) -> str:
    """What that container of some pod wrote last. Waits until it has run: then chart and image were accepted."""
    within = harness.kubectl.within(release)

    def words() -> str:
        names = [pod["metadata"]["name"] for pod in within.items("pods")]
        return next((text.strip() for name in names if (text := _log(within, name, container)).strip()), "")

    return wait_until(f"{container} of {release} has run", words, INSTALL_SECONDS)[-300:]


def _log(within: Kubectl, pod: str, container: str) -> str:
    """Empty before it runs."""
    try:
        return within("logs", pod, f"--container={container}", "--tail=3")
    except CommandError:
        return ""
