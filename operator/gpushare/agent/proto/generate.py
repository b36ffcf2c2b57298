"""Generates the Python code for the kubelet's definitions beside it: `python -m gpushare.agent.proto.generate`.

Generated code refuses runtimes older than its generator, so that must be the oldest grpcio that is supported: 1.80.0.
"""

from importlib import resources
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path("gpushare/agent/proto")
"""Below the import root: generated modules import each other by their place below it."""


def generate(root: Path, out: Path) -> None:
    """Writes below `out` the code for every definition in `root`/gpushare/agent/proto. RuntimeError: protoc refused."""
    well_known = resources.files("grpc_tools") / "_proto"
    sources = [str(FOLDER / file.name) for file in sorted((root / FOLDER).glob("*.proto"))]
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    code = protoc.main(["protoc", f"--proto_path={root}", f"--proto_path={well_known}", *outputs, *sources])
    if code != 0:
        raise RuntimeError(f"protoc ended with {code} for {', '.join(sources)}")


if __name__ == "__main__":
    import_root = Path(__file__).parents[3]
    generate(import_root, import_root)
