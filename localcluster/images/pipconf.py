"""The machine's pip settings for an image build. Their values do not stay in the image.

pip's environment variables and configuration become one file, mounted read-only at /etc/pip.conf during the build.
Local files and directories in the settings are mounted at their own paths. Only empty mount points stay in the image.
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
# Settings that name a path of the machine, or that only make sense outside of an image.
_NOT_CARRIED = {"cache-dir", "target", "prefix", "user", "require-virtualenv", "log", "break-system-packages"}


def settings(pip_config_list: str) -> dict[str, str]:
    """The settings in the output of `pip config list`. The environment outranks files, as in pip."""
    values: dict[str, str] = {}
    matches = [match for line in pip_config_list.splitlines() if (match := _SETTING.match(line))]
    for match in sorted(matches, key=lambda match: match["section"] is None):
        if match["section"] in (None, "global", "install") and match["key"] not in _NOT_CARRIED:
            values[match["key"]] = match["value"].replace("\\n", " ").strip()
    return values


def render(values: dict[str, str]) -> str:
    """A pip.conf with these settings."""
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in sorted(values.items()))


def named_paths(values: dict[str, str]) -> list[Path]:
    """The absolute paths among the values, without the certificates, which every base image has."""
    words = [word for value in values.values() for word in value.split()]
    return [Path(word) for word in words if word.startswith("/") and Path(word) != _SYSTEM_BUNDLE]


def volumes(directory: Path) -> list[str]:
    """Writes the configuration to `directory`. Returns the `--volume` arguments for buildah."""
    values = settings(_pip_config_list())
    file = directory / "pip.conf"
    file.write_text(render(values))
    return [f"--volume={file}:/etc/pip.conf:ro", *_mounts(named_paths(values))]


def _mounts(paths: Iterable[Path]) -> list[str]:
    return [f"--volume={path}:{path}:ro" for path in paths if path.exists()]


def _pip_config_list() -> str:
    """The output of `pip config list`; for a Python without pip, the settings of the environment in the same form."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if result.returncode == 0:
        return result.stdout
    own = {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}
    return "\n".join(f":env:.{key}='{value}'" for key, value in own.items())
