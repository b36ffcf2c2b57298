"""Boots a kernel in QEMU with an SELinux policy and `guest` as its init, and prints what that prints.

`python -m tests.selinux.boot --kernel vmlinuz --policy policy.33 --name container-selinux`. Needs qemu-system-x86_64,
cpio, a kernel with CONFIG_SECURITY_SELINUX, CONFIG_TMPFS_XATTR and a serial console, such as Debian's cloud kernel, and
a dynamically linked Python, this one, which goes into the machine with its standard library. Emulated: about a minute.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.selinux.guest import POLICIES

HERE = Path(__file__).resolve().parent
LABELS = HERE.parents[1] / "operator/gpushare/agent/gpus/container_labels.py"
LEFT_OUT = ("test", "site-packages", "__pycache__", "idlelib", "ensurepip", "tkinter", "lib2to3", "config-*", "*.a")
APPEND = "console=ttyS0 loglevel=6 lsm=selinux security=selinux enforcing=0 panic=1 PYTHONHASHSEED=0"


def libraries(program: Path) -> set[Path]:
    """The shared libraries that it needs, as ldd lists them."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=30, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listed)}


def fill(root: Path, policy: Path) -> None:
    prefix, version = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in ("proc", "sys", "run", "dev", "tmp", "code"):
        (root / folder).mkdir()
    library = root / str(prefix / "lib" / version).lstrip("/")
    shutil.copytree(prefix / "lib" / version, library, ignore=shutil.ignore_patterns(*LEFT_OUT))
    program = prefix / "bin" / version
    needed = {program} | libraries(program)
    for module in library.glob("lib-dynload/*.so"):
        needed |= libraries(module)
    for path in needed:
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)
    shutil.copy(LABELS, root / "code")
    shutil.copy(HERE / "guest.py", root / "guest.py")
    shutil.copy(policy, root / "policy")
    (root / "init").write_text(f"#!{program}\nimport runpy\nrunpy.run_path('/guest.py', run_name='__main__')\n")
    (root / "init").chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", type=Path, required=True)
    parser.add_argument("--policy", type=Path, required=True, help="a compiled policy")
    parser.add_argument("--name", choices=POLICIES, default="container-selinux", help="whose it is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        root, image = Path(work) / "root", Path(work) / "initrd"
        root.mkdir()
        fill(root, args.policy)
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        with image.open("wb") as file:
            pack = ["cpio", "-o", "-H", "newc", "--quiet"]
            subprocess.run(pack, input=names.encode(), stdout=file, cwd=root, timeout=120, check=True)
        command = ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "1024", "-nographic", "-no-reboot"]
        command += ["-kernel", args.kernel, "-initrd", image, "-append", f"{APPEND} POLICY={args.name}"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )
    lines = [line.strip() for line in done.stdout.splitlines()]
    print("\n".join(line for line in lines if line.startswith("CASE") or "avc:" in line or "Error" in line))
    return 0 if any(line.startswith("CASE a confined agent") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
