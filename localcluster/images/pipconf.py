"""The machine's pip settings, carried into an image build without their values ending up in it.

pip's environment variables and configuration become one file that is mounted read-only at /etc/pip.conf during the
build; local files and directories that the settings name are mounted at the same place. Of both only the empty mount
points stay in the image.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# The base image carries the machine's certificates here, so this one needs no mount.
_SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_SETTING = re.compile(r"^(?::env:|(?P<section>[\w-]+))\.(?P<key>[\w-]+)='(?P<value>.*)'$")
# Settings that name a place of the machine's own, or that only make sense outside of an image.
_NOT_CARRIED = {"cache-dir", "target", "prefix", "user", "require-virtualenv", "log", "break-system-packages"}


def settings(pip_config_list: str) -> dict[str, str]:
    """Key to value from the output of `pip config list`; the environment outranks files, as in pip."""
    found: dict[str, str] = {}
    matches = [match for line in pip_config_list.splitlines() if (match := _SETTING.match(line))]
    for match in sorted(matches, key=lambda match: match["section"] is None):
        if match["section"] in (None, "global", "install") and match["key"] not in _NOT_CARRIED:
            found[match["key"]] = match["value"].replace("\\n", " ").strip()
    return found


def render(found: dict[str, str]) -> str:
    """A pip.conf with these settings."""
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(found.items()))


def named_paths(found: dict[str, str]) -> list[Path]:
    """Absolute paths among the values, without the certificates that every base image has."""
    words = [word for value in found.values() for word in value.split()]
    return [Path(word) for word in words if word.startswith("/") and Path(word) != _SYSTEM_BUNDLE]


def volumes(directory: Path) -> list[str]:
    """`--volume` arguments for buildah; writes the configuration to `directory`."""
    found = settings(_pip_config_list())
    file = directory / "pip.conf"
    file.write_text(render(found))
    return [f"--volume={file}:/etc/pip.conf:ro", *_mounts(named_paths(found))]


def _mounts(paths: Iterable[Path]) -> list[str]:
    return [f"--volume={path}:{path}:ro" for path in paths if path.exists()]


def _pip_config_list() -> str:
    """Empty where this Python has no pip: then there are no settings but the environment's, read by hand."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if result.returncode == 0:
        return result.stdout
    own = {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}
    return "\n".join(f":env:.{key}='{value}'" for key, value in own.items())
