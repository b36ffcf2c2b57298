"""What programs see of a GPU's memory through the front libraries, before libraries that stand in for the driver's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare.grant.environment import client_environment
from gpushare.grant.model import Grant
from localcluster.paths import REPOSITORY
from tests.native import build
from tests.native.build import GIB

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")

GPU = "GPU-00000000-0000-0000-0000-000000000000"
GRANT = {"GPUSHARE_GPU": GPU, "GPUSHARE_MEMORY_BYTES": str(16 * GIB), "GPUSHARE_PROCESSES": "1"}
WHOLE = 80 * GIB

ASK = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
old_free, old_total, old_whole = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
seen = []
for device in range(int(sys.argv[1])):
    cuda.cuCtxSetCurrent(ctypes.c_void_p(device))
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    cuda.cuDeviceTotalMem_v2(ctypes.byref(whole), device)
    cuda.cuMemGetInfo(ctypes.byref(old_free), ctypes.byref(old_total))
    cuda.cuDeviceTotalMem(ctypes.byref(old_whole), device)
    seen.append([figure.value for figure in (free, total, whole, old_free, old_total, old_whole)])
print(json.dumps(seen))
"""
LOOK_UP = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t if int(sys.argv[3]) >= 3020 else ctypes.c_uint
found, status = ctypes.c_void_p(), ctypes.c_int(7)
version, flags = int(sys.argv[3]), ctypes.c_uint64(int(sys.argv[4]))
def look_up(name):
    if sys.argv[1] == "cuGetProcAddress":
        return cuda.cuGetProcAddress(name, ctypes.byref(found), version, flags)
    return getattr(cuda, sys.argv[1])(name, ctypes.byref(found), version, flags, ctypes.byref(status))
result = look_up(sys.argv[2].encode())
free, total = size(), size()
first = ctypes.byref(free) if sys.argv[2] == "cuMemGetInfo" else ctypes.byref(total)
second = ctypes.byref(total) if sys.argv[2] == "cuMemGetInfo" else 0
if result == 0:
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(found.value)(first, second)
print(json.dumps([result, status.value, total.value]))
"""
NVML = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, one, two = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)(), (ctypes.c_ulonglong * 5)()
seen = []
for index in range(2):
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryInfo(device, one)
    two[0] = 40 | 2 << 24
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, two) == 0
    seen.append([value >> 30 for value in [*one, *two[1:]]])
two[0] = 1
print(json.dumps([*seen, nvml.nvmlDeviceGetMemoryInfo_v2(device, two)]))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.container(tmp_path_factory.mktemp("container"))


def run(libraries: Path, program: str, *arguments: object, **environment: str) -> Any:
    """What `program` prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-SEsc", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=60, env={**environment, "LD_LIBRARY_PATH": str(libraries)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cuda_shows_the_grant_as_total_and_at_most_that_as_free(libraries: Path) -> None:
    (seen,) = run(libraries, ASK, 1, **GRANT)
    assert seen[:3] == [16 * GIB, 16 * GIB, 16 * GIB]


def test_a_grant_above_what_is_free_leaves_what_is_free(libraries: Path) -> None:
    (seen,) = run(libraries, ASK, 1, **GRANT | {"GPUSHARE_MEMORY_BYTES": str(75 * GIB)})
    assert seen[:3] == [70 * GIB, 75 * GIB, 75 * GIB]


def test_functions_of_before_cuda_3_2_have_sizes_of_32_bits(libraries: Path) -> None:
    (small,) = run(libraries, ASK, 1, **GRANT | {"GPUSHARE_MEMORY_BYTES": str(2 * GIB)})
    assert small[3:] == [2 * GIB, 2 * GIB, 2 * GIB]
    (large,) = run(libraries, ASK, 1, **GRANT)
    assert large[3:] == [3 * GIB, 3 * GIB + 1, 3 * GIB + 1]


@pytest.mark.parametrize(
    ("sentence", "memory", "processes", "expected"),
    [
        ("one process has all of it", 16 * GIB, 1, 16 * GIB),
        ("each of two has half of it", 16 * GIB, 2, 8 * GIB),
        ("a part is whole MiB, as MPS limits it", 10 * GIB, 3, 3413 << 20),
        ("parts of MiB in the grant do not count", 16 * GIB + 1234567, 1, 16 * GIB + (1 << 20)),
        ("a grant as large as the GPU changes nothing", 80 * GIB, 1, WHOLE),
        ("nor does one above it", 90 * GIB, 1, WHOLE),
        ("nor one of less than a MiB for each process", 1 << 20, 2, WHOLE),
    ],
)
def test_each_process_sees_its_own_limit(
    libraries: Path, sentence: str, memory: int, processes: int, expected: int
) -> None:
    given = GRANT | {"GPUSHARE_MEMORY_BYTES": str(memory), "GPUSHARE_PROCESSES": str(processes)}
    (seen,) = run(libraries, ASK, 1, **given)
    assert seen[1] == seen[2] == expected, sentence


@pytest.mark.parametrize(
    "grant",
    [Grant("s", 25, 8192, 1), Grant("s", 25, 10240, 3), Grant("s", 25, 8192, 2, burst_mib=16384)],
    ids=["one process", "a part that is no whole GiB", "more that may be borrowed"],
)
def test_a_containers_variables_show_the_memory_of_each_process(libraries: Path, grant: Grant) -> None:
    (seen,) = run(libraries, ASK, 1, **client_environment(grant, 81920), GPUSHARE_GPU=GPU)
    assert seen[1] == seen[2] == grant.process_memory_mib << 20


@pytest.mark.parametrize(
    ("used", "gpu_free", "free"), [(0, 80, 16), (10, 70, 6), (20, 60, 0), (0, 12, 12)],
    ids=["nothing used", "a part", "more than is reserved", "the GPU has less"],
)  # fmt: skip
def test_who_may_borrow_sees_as_free_what_is_left_of_its_reservation(
    libraries: Path, used: int, gpu_free: int, free: int
) -> None:
    """The driver counts from the limit of MPS, of which there is more. CUDA and NVML say the same."""
    given = client_environment(Grant("s", 25, 16384, 1, burst_mib=24576), 81920) | {
        "GPUSHARE_GPU": GPU, "CUDA_FREE": str(min(40 - used, gpu_free)),
        "DRIVER_USED": f"0:{used}", "DRIVER_FREE": str(gpu_free),
    }  # fmt: skip
    (seen,) = run(libraries, ASK, 1, **given)
    assert seen[:2] == [free * GIB, 16 * GIB]
    assert run(libraries, NVML, **given)[0][:2] == [16, free]


@pytest.mark.parametrize(
    "wrong",
    [
        {"GPUSHARE_MEMORY_BYTES": ""},
        {"GPUSHARE_MEMORY_BYTES": "16Gi"},
        {"GPUSHARE_MEMORY_BYTES": "-17179869184"},
        {"GPUSHARE_MEMORY_BYTES": " 17179869184"},
        {"GPUSHARE_MEMORY_BYTES": "17179869184\n"},
        {"GPUSHARE_MEMORY_BYTES": "0"},
        {"GPUSHARE_MEMORY_BYTES": "18446744073709551617"},
        {"GPUSHARE_MEMORY_BYTES": "1" * 4000},
        {"GPUSHARE_PROCESSES": "0"},
        {"GPUSHARE_PROCESSES": ""},
        {"GPUSHARE_PROCESSES": "1.0"},
        {"GPUSHARE_GPU": ""},
        {"GPUSHARE_GPU": GPU[:-1]},
        {"GPUSHARE_GPU": GPU + "0"},
        {"GPUSHARE_GPU": GPU.replace("GPU-", "MIG-")},
        {"GPUSHARE_GPU": GPU.replace("-0000-", "00000-", 1)},
        {"GPUSHARE_GPU": GPU[:-1] + "g"},
    ],
    ids=str,
)
def test_an_environment_that_is_not_ours_changes_nothing(libraries: Path, wrong: dict[str, str]) -> None:
    (seen,) = run(libraries, ASK, 1, **GRANT | wrong)
    assert seen[:3] == [70 * GIB, WHOLE, WHOLE]
    assert run(libraries, NVML, **GRANT | wrong)[0] == [80, 70, 10, 80, 1, 70, 9]


@pytest.mark.parametrize("missing", GRANT)
def test_an_environment_without_a_grant_changes_nothing(libraries: Path, missing: str) -> None:
    (seen,) = run(libraries, ASK, 1, **{name: value for name, value in GRANT.items() if name != missing})
    assert seen[:3] == [70 * GIB, WHOLE, WHOLE]


def test_of_two_gpus_the_granted_one_alone_changes(libraries: Path) -> None:
    second = GRANT | {"GPUSHARE_GPU": GPU[:-1] + "1", "DRIVER_DEVICES": "2"}
    first, other = run(libraries, ASK, 2, **second)
    assert (first[:3], other[:3]) == ([70 * GIB, WHOLE, WHOLE], [16 * GIB] * 3)
    assert [line[0] for line in run(libraries, NVML, **second)[:2]] == [80, 16]


def test_the_only_gpu_is_the_granted_one_though_cuda_names_it_otherwise(libraries: Path) -> None:
    (seen,) = run(libraries, ASK, 1, **GRANT | {"GPUSHARE_GPU": GPU[:-1] + "7"})
    assert seen[:3] == [16 * GIB] * 3


def test_errors_of_the_driver_pass(libraries: Path) -> None:
    """The driver gives these errors without a context, and for a device that does not exist."""
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuCtxSetCurrent(ctypes.c_void_p(-1)); "
        "a, b = ctypes.c_size_t(5), ctypes.c_size_t(6); "
        "print([cuda.cuMemGetInfo_v2(ctypes.byref(a), ctypes.byref(b)), a.value, b.value,"
        " cuda.cuDeviceTotalMem_v2(ctypes.byref(a), 3)])"
    )
    assert run(libraries, program, **GRANT) == [201, 5, 6, 101]


@pytest.mark.parametrize("aliases", [{}, {"DRIVER_ALIASES": "1"}], ids=["exported addresses", "addresses of its own"])
@pytest.mark.parametrize("flags", [0, 1, 2])
@pytest.mark.parametrize(
    ("function", "name", "version", "expected"),
    [
        ("cuGetProcAddress_v2", "cuMemGetInfo", 13000, 2 * GIB),
        ("cuGetProcAddress_v2", "cuMemGetInfo", 3020, 2 * GIB),
        ("cuGetProcAddress_v2", "cuMemGetInfo", 3010, 2 * GIB),
        ("cuGetProcAddress_v2", "cuDeviceTotalMem", 12040, 2 * GIB),
        ("cuGetProcAddress_v2", "cuDeviceTotalMem", 2000, 2 * GIB),
        ("cuGetProcAddress", "cuMemGetInfo", 11040, 2 * GIB),
        ("cuGetProcAddress", "cuDeviceTotalMem", 11040, 2 * GIB),
    ],
)
def test_what_is_looked_up_by_name_and_version_shows_the_grant_too(
    libraries: Path, function: str, name: str, version: int, flags: int, aliases: dict[str, str], expected: int
) -> None:
    given = {**GRANT, **aliases, "GPUSHARE_MEMORY_BYTES": str(2 * GIB)}
    result, status, seen = run(libraries, LOOK_UP, function, name, version, flags, **given)
    assert (result, seen) == (0, expected)
    assert status == (7 if function == "cuGetProcAddress" else 0)


def test_a_function_of_a_later_cuda_that_is_not_known_passes(libraries: Path) -> None:
    """Its sizes or arguments may be others: only an address that the driver exports tells which function it is."""
    assert run(libraries, LOOK_UP, "cuGetProcAddress_v2", "cuMemGetInfo", 14000, 0, **GRANT)[2] == 16 * GIB
    later = run(libraries, LOOK_UP, "cuGetProcAddress_v2", "cuMemGetInfo", 14000, 0, **GRANT, DRIVER_ALIASES="1")
    assert later[2] == WHOLE


def test_who_looks_the_lookup_up_gets_a_lookup_that_shows_the_grant(libraries: Path) -> None:
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
pointer = ctypes.c_void_p
signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_uint64, pointer)
found, total, free = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
look_up = cuda.cuGetProcAddress_v2
for turn in range(3):
    look_up(b"cuGetProcAddress", ctypes.byref(found), 12000, ctypes.c_uint64(0), None)
    look_up = signature(found.value)
look_up(b"cuMemGetInfo", ctypes.byref(found), 12000, 0, None)
ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(found.value)(ctypes.byref(free), ctypes.byref(total))
missing = look_up(b"cuNoSuchFunction", ctypes.byref(found), 12000, 0, None)
look_up(b"cuLaunchNothing", ctypes.byref(found), 12000, 0, None)
nothing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(found.value)(41)
print([total.value, missing, nothing])
"""
    assert run(libraries, program, **GRANT) == [16 * GIB, 500, 42]


def test_every_function_that_the_front_does_not_know_is_the_drivers(libraries: Path) -> None:
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); version = ctypes.c_int(); "
        "cuda.cuDriverGetVersion(ctypes.byref(version)); "
        "print([cuda.cuLaunchNothing(1), version.value, int(hasattr(cuda, 'cuNoSuchFunction'))])"
    )
    assert run(libraries, program, **GRANT) == [2, 13000, 0]


def test_a_library_that_is_opened_again_shows_the_grant(libraries: Path) -> None:
    """The driver's own has the same SONAME: were it left alone in the process, it would be found."""
    program = """
import ctypes, _ctypes
for turn in range(3):
    cuda = ctypes.CDLL("libcuda.so.1")
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    _ctypes.dlclose(cuda._handle)
again = ctypes.CDLL("libcuda.so.1")
again.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(total.value)
"""
    assert run(libraries, program, **GRANT) == 16 * GIB


def test_the_drivers_own_file_that_is_opened_first_does_not_hide_the_front(libraries: Path) -> None:
    program = f"""
import ctypes
own = ctypes.CDLL({str(libraries / "gpushare-libcuda.so.1")!r})
total = ctypes.c_size_t()
ctypes.CDLL({str(libraries / "libcuda.so.1")!r}).cuDeviceTotalMem_v2(ctypes.byref(total), 0)
print(total.value)
"""
    assert run(libraries, program, **GRANT) == 16 * GIB


def test_an_image_s_ldconfig_leads_to_the_front(tmp_path: Path) -> None:
    """Three files have one SONAME: front, driver, and the driver under the name of its version."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if program is None:
        pytest.skip("no ldconfig")
    folder = build.container(tmp_path / "usr/lib64")
    front = (folder / "libcuda.so.1").read_bytes()
    shutil.copy(folder / "gpushare-libcuda.so.1", folder / "libcuda.so.580.1")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/usr/lib64\n")
    subprocess.run([program, "-r", tmp_path], check=True, timeout=60)
    cache = subprocess.run([program, "-r", tmp_path, "-p"], capture_output=True, text=True, check=True, timeout=60)
    paths = [line.split()[-1] for line in cache.stdout.splitlines() if "libcuda" in line]
    assert paths == ["/usr/lib64/libcuda.so.1"]
    assert (folder / "libcuda.so.1").read_bytes() == front


@pytest.mark.parametrize(
    ("sentence", "environment", "expected"),
    [
        ("a GPU that has room can give the whole grant", {}, [16, 16, 0]),
        ("what the container's process has taken is used", {"DRIVER_USED": "0:6"}, [16, 10, 6]),
        ("also where another process of the container asks", {"DRIVER_USED": "99:6"}, [16, 10, 6]),
        ("more than the grant is all of it", {"DRIVER_USED": "99:12 98:12"}, [16, 0, 16]),
        ("what NVML does not know is not counted", {"DRIVER_USED": "0:-1 0:2"}, [16, 14, 2]),
        ("neighbours on a full GPU leave less", {"DRIVER_FREE": "5"}, [16, 5, 11]),
        ("of several processes each has a part", {"GPUSHARE_PROCESSES": "2", "DRIVER_USED": "99:7"}, [8, 8, 0]),
        ("and sees what it took itself", {"GPUSHARE_PROCESSES": "2", "DRIVER_USED": "99:7 0:3"}, [8, 5, 3]),
    ],
)  # fmt: skip
def test_nvml_shows_the_grant_and_what_is_taken_of_it(
    libraries: Path, sentence: str, environment: dict[str, str], expected: list[int]
) -> None:
    seen, _, wrong_version = run(libraries, NVML, **GRANT | environment)
    total, free, used = expected
    assert seen == [total, free, used, total, 0, free, used], sentence
    assert wrong_version == 25, "the driver checks the structure's version"


def test_a_linked_program_its_threads_and_children_see_the_grant(libraries: Path, tmp_path: Path) -> None:
    program = build.program(tmp_path)
    assert outputs(program, LD_LIBRARY_PATH=str(libraries), **GRANT) == [16] * 10
    assert outputs(program, LD_LIBRARY_PATH=str(tmp_path / "toolkit"), **GRANT) == [80] * 10


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_sanitizer_finds_anything(tmp_path: Path, sanitizer: str) -> None:
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g")
    libraries, program = build.container(tmp_path / "container", *flags), build.program(tmp_path, *flags)
    assert outputs(program, LD_LIBRARY_PATH=str(libraries), **GRANT) == [16] * 10


@pytest.mark.parametrize("name", ["cuda", "classes", "nvml"])
def test_nothing_that_is_asked_set_or_answered_does_harm(tmp_path: Path, name: str) -> None:
    """Random environments, drivers and calls; what the targets check is in tests/native/fuzz_*.c."""
    target = build.fuzz_target(tmp_path, name)
    done = subprocess.run(
        [target, "1", "3000" if name == "classes" else "30000"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def outputs(program: Path, **environment: str) -> list[int]:
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return [int(line.split()[1]) for line in done.stdout.splitlines()]


EXPORTS = {
    "libcuda.so.1": {
        "cuDeviceTotalMem", "cuDeviceTotalMem_v2", "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemGetInfo",
        "cuMemGetInfo_v2",
    },
    "libnvidia-ml.so.1": {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"},
}  # fmt: skip


@pytest.mark.parametrize("name", [*EXPORTS, "libcuda-classes.so.1"])
def test_a_front_exports_only_what_it_changes(libraries: Path, name: str) -> None:
    def ask(*command: str) -> str:
        return subprocess.run([*command, libraries / name], capture_output=True, text=True, check=True).stdout

    exported = {line.split()[-1] for line in ask("nm", "-D", "--defined-only").splitlines()}
    soname = "libcuda.so.1" if name == "libcuda-classes.so.1" else name
    if name == soname:
        assert exported == EXPORTS[soname], "no launch passes it"
    else:
        assert exported > EXPORTS[soname] | {"cuInit", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuGraphLaunch_ptsz"}
        assert all(symbol.startswith("cu") for symbol in exported)
    undefined = {line.split()[-1] for line in ask("nm", "-D", "--undefined-only").splitlines()}
    assert undefined
    assert not [name for name in undefined if "@" in name]
    dynamic, segments = ask("readelf", "-dW"), ask("readelf", "-lW")
    assert f"soname: [{soname}]" in dynamic
    assert f"[gpushare-{soname}]" in dynamic
    assert "NODELETE" in dynamic
    assert "BIND_NOW" in dynamic
    assert "TEXTREL" not in dynamic
    assert "GNU_RELRO" in segments
    assert "RWE" not in segments


def test_the_same_sources_make_the_same_bytes_wherever_they_lie(libraries: Path, tmp_path: Path) -> None:
    """So whoever has the compiler of requirements/native.lock can compare a release's libraries with their own."""
    sources = shutil.copytree(REPOSITORY / "native", tmp_path / "elsewhere")
    subprocess.run([sources / "build.sh", tmp_path / "again"], check=True, timeout=120)
    for soname in (*EXPORTS, "libcuda-classes.so.1"):
        assert (tmp_path / "again" / soname).read_bytes() == (libraries / soname).read_bytes()
