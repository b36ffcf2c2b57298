"""The users of the parts, and what is left to the broker once it has become its own. As root of the machine alone."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gpushare.process import users
from localcluster.paths import REPOSITORY

PARTS = {"operator": users.OPERATOR, "webhook": users.WEBHOOK, "page": users.PAGE, "hooks": users.HOOKS}
TAKEN = {
    "images, nobody and systemd's DynamicUser": range(0x10000),
    "the kubelet's user namespaces, up to 1,024 pods": range(0x10000, 0x10000 * 1025),
    "useradd's subordinate users": range(100_000, 600_100_001),
    "systemd's containers": range(0x80000, 0x70000000),
    "OpenShift's namespaces": range(1_000_000_000, 2_000_000_000),
    "SSSD's accounts": range(200_000, 2_000_200_001),
    "systemd's foreign users": range(0x7FFE0000, 0x7FFF0000),
    "what Kubernetes takes for no user": range(0x80000000, 0x100000000),
}
GROUP = 65534
BECOME = f"""
import json, os, resource, socket, sys
from gpushare.process import users
try:
    exempt = users.become_broker([{GROUP}])
except OSError as error:
    print(json.dumps({{"error": str(error)}}))
    raise SystemExit
def outcome(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
print(json.dumps({{
    "exempt": exempt,
    "status": open("/proc/self/status").read(),
    "own limits": outcome(resource.setrlimit, resource.RLIMIT_NOFILE, limits),
    "another's": outcome(resource.prlimit, int(sys.argv[1]), resource.RLIMIT_CPU),
    "root again": outcome(os.setresuid, 0, 0, 0),
    "another group": outcome(os.setgroups, [0]),
}}))
"""
IN_FLIGHT = """
import array, errno, os, resource, socket, sys
privileged = sys.argv[1] == "privileged"
if privileged:
    from gpushare.process import users
    users.become_broker([])
else:
    os.setgroups([])
    os.setresgid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
    os.setresuid(int(sys.argv[2]), int(sys.argv[2]), int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
ours, theirs = socket.socketpair()
sent = 0
try:
    for _ in range(10):
        socket.send_fds(ours, [b"x"], [0] * 250)
        sent += 250
except OSError as error:
    print(errno.errorcode[error.errno], sent)
else:
    print("all", sent)
"""
TESTS_OWN_USER = 2_100_000_999
BOUNDING = next(
    int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")
)
EXEMPTION = 1 << users.CAP_SYS_RESOURCE
CAN_BE_EXEMPT = bool(EXEMPTION & BOUNDING)
"""A machine that is itself confined may have no CAP_SYS_RESOURCE to give."""

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"],
    reason="needs root of the machine",
)


def run(program: str, *words: str, start: Sequence[str] = ()) -> str:
    done = subprocess.run(
        [*start, sys.executable, "-c", program, *words], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_each_part_has_a_user_outside_all_ranges_that_others_hand_out() -> None:
    all_users = (*PARTS.values(), users.BROKER)
    assert len(set(all_users)) == len(all_users)
    assert [(user, name) for user in all_users for name, taken in TAKEN.items() if user in taken] == []


def test_chart_and_image_have_the_same_users() -> None:
    helpers = (REPOSITORY / "charts/gpushare/templates/_helpers.tpl").read_text()
    table = helpers.partition('"gpushare.users"')[2].partition("{{- end }}")[0]
    assert {name: int(user) for name, user in re.findall(r"^(\w+): (\d+)$", table, re.MULTILINE)} == PARTS
    image = (REPOSITORY / "Dockerfile").read_text()
    named = re.findall(r"gpushare-operator:x:(\d+):(\d+):", image)
    last = re.findall(r'^USER (\d+):(\d+)\nENTRYPOINT \["gpushare"\]', image, re.MULTILINE)
    assert list(chain(*named, *last)) == [str(users.OPERATOR)] * 4


@as_root
def test_a_broker_keeps_one_capability_and_may_not_limit_others() -> None:
    seen: dict[str, Any] = json.loads(run(BECOME, str(os.getpid())))
    status = {key: value.split() for key, _, value in (line.partition(":") for line in seen.pop("status").splitlines())}
    assert status["Uid"] == status["Gid"] == [str(users.BROKER)] * 4
    assert status["Groups"] == [str(GROUP)]
    for kind in ("CapEff", "CapPrm"):
        assert int(status[kind][0], 16) == EXEMPTION & BOUNDING
    assert seen.pop("exempt") is CAN_BE_EXEMPT
    assert int(status["CapInh"][0], 16) == int(status["CapAmb"][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert seen == {"own limits": 0, "another's": 1, "root again": 1, "another group": 1}


@as_root
@pytest.mark.parametrize("kept", ["+setgid", "+setuid"])
def test_a_broker_that_cannot_become_its_user_does_not_go_on(kept: str) -> None:
    start = ("setpriv", f"--bounding-set=-all,{kept}", f"--inh-caps=-all,{kept}")
    assert "Operation not permitted" in json.loads(run(BECOME, str(os.getpid()), start=start))["error"]


@as_root
def test_descriptors_under_way_are_counted_for_all_but_a_broker() -> None:
    assert run(IN_FLIGHT, "bare", str(TESTS_OWN_USER)) == "ETOOMANYREFS 1250"
    assert run(IN_FLIGHT, "privileged") == ("all 2500" if CAN_BE_EXEMPT else "ETOOMANYREFS 1250")
