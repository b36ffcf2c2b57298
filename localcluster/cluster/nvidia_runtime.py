"""NVIDIA's container runtime as containerd's handler `nvidia`, for pods of a RuntimeClass. A node works without it."""

from pathlib import Path

from localcluster.cluster.layout import CDI_DIRECTORIES, Layout

PROGRAM = "nvidia-container-runtime"
_SCRIPT = """#!/bin/sh
NVIDIA_CTK_CONFIG_FILE_PATH={configuration} exec {programs}/{program} "$@"
"""
_CONFIGURATION = """[nvidia-container-runtime]
debug = "{log}"
mode = "{mode}"
runtimes = ["{runc}"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
spec-dirs = {directories}
[nvidia-ctk]
path = "{programs}/nvidia-ctk"
"""


def handler(layout: Layout) -> Path:
    """What containerd starts for the handler. `put` makes it, at any time before the first pod."""
    return layout.state / "nvidia" / PROGRAM


def put(layout: Layout, programs: Path, mode: str) -> None:
    """`programs`: NVIDIA's, of the component NVIDIA. `mode`: as in its configuration, such as `cdi` or `auto`."""
    script = handler(layout)
    script.parent.mkdir(exist_ok=True)
    configuration = script.with_name("config.toml")
    configuration.write_text(
        _CONFIGURATION.format(
            mode=mode, runc=layout.programs.runtime / "runc", programs=programs,
            directories=list(CDI_DIRECTORIES), log=layout.logs / f"{PROGRAM}.log",
        ).replace("'", '"')
    )  # fmt: skip
    script.write_text(_SCRIPT.format(configuration=configuration, programs=programs, program=PROGRAM))
    script.chmod(0o755)
