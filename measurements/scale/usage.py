"""What the kernel says of a process."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """A process' usage from /proc/PID: MiB, and seconds of user and system time since the start. RuntimeError once
    it has ended."""

    resident: float
    peak: float
    cpu: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        if "VmRSS" not in status:
            raise RuntimeError(f"process {pid} has ended")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(int(status["VmRSS"].split()[0]) / 1024, int(status["VmHWM"].split()[0]) / 1024, cpu)
