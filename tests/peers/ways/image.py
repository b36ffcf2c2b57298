"""NVIDIA's device plugin as an image, made on the machine itself: its programs, their libraries, a shell, `mount`.

NVIDIA's own image has the same programs on another base, which no machine without a registry can have.
"""

import shutil
from pathlib import Path

from gpushare.agent.gpus.driver import EXECUTABLES, control_program_dir
from localcluster.errors import LocalClusterError
from tests.gpu.stack import host_image, tools
from tests.gpu.stack.host_tree import Tree
from tests.peers.build import PROGRAMS

SHELL = Path("/bin/sh")
TOOLS = ("mount", "umount", "tail")
"""What the programs start: `mount` for the daemon's /dev/shm, `tail` for its log."""
OF_THE_DRIVER = ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0")
"""What the driver's libraries need of the C library, and the plugin's programs do not."""
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NO_COMPUTE_MODE = b"""#!/bin/sh
# The compute mode of this machine is not ours to set: such a command does nothing, every other is the driver's own.
for word in "$@"; do
  [ "$word" = -c ] && exit 0
done
exec /usr/bin/nvidia-smi "$@"
"""


def build(programs: Path, archive: Path) -> str:
    """Writes the archive. Returns the image's name. Raises LocalClusterError without the tools."""
    tree = Tree()
    machines_own = [SHELL, *(Path(found) for name in TOOLS if (found := shutil.which(name)))]
    if len(machines_own) <= len(TOOLS):
        raise LocalClusterError(f"this machine lacks one of {', '.join(TOOLS)}")
    needed = tools.libraries_of([*machines_own, *(programs / name for name in PROGRAMS)])
    beside = [path.with_name(name) for path in needed if path.name == "libc.so.6" for name in OF_THE_DRIVER]
    for path in (*machines_own, *needed, *beside):
        tree.add(path)
    for name in PROGRAMS:
        tree.files[f"/usr/bin/{name}"] = programs / name
    if driver := control_program_dir(Path("/")):
        # In their own place: a machine may have scripts in /usr/bin that start them, and NVIDIA's runtime mounts those.
        tree.files |= {f"{driver}/{name}": driver / name for name in EXECUTABLES}
    config = host_image.for_this_machine({"Env": [f"PATH={PATH}"], "User": "0:0"})
    return host_image.write_image(
        archive, "nvidia-device-plugin", config, tree, {"usr/local/bin/nvidia-smi": NO_COMPUTE_MODE}
    )
