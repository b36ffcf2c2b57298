"""Generates the Python code for the kubelet's definitions beside it: `python -m gpushare.agent.proto.generate`.

Generated messages refuse a protobuf older than their generator's, so grpcio-tools, which brings it and nothing that
runs, is the one of the oldest protobuf that is supported: 1.80.0. The services are made by grpclib's own plugin of it.
"""

import sys
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path("gpushare/agent/proto")
"""Below the import root: generated modules import each other by their place below it."""
PLUGIN = "protoc-gen-grpclib_python"
"""Beside the interpreter, in an environment that need not be on the PATH."""


def generate(root: Path, out: Path) -> None:
    """Writes below `out` the code for every definition in `root`/gpushare/agent/proto. RuntimeError: protoc refused."""
    well_known = resources.files("grpc_tools") / "_proto"
    sources = [str(FOLDER / file.name) for file in sorted((root / FOLDER).glob("*.proto"))]
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpclib_python")]
    plugin = f"--plugin={PLUGIN}={Path(sys.executable).with_name(PLUGIN)}"
    code = protoc.main(["protoc", plugin, f"--proto_path={root}", f"--proto_path={well_known}", *outputs, *sources])
    if code != 0:
        raise RuntimeError(f"protoc ended with {code} for {', '.join(sources)}")


if __name__ == "__main__":
    import_root = Path(__file__).parents[3]
    generate(import_root, import_root)
