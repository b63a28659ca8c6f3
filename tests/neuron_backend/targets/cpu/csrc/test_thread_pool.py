"""The thread pool alone, under small parallel regions."""

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from decodekit.neuron_backend.targets.cpu import program_objects, toolchain

pytestmark = pytest.mark.skipif(
    toolchain.lack() is not None or not program_objects.has_pool(), reason="needs g++ on Linux"
)

REGIONS = Path(__file__).parent / "regions.cpp"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Two libraries with the same regions, each with the pool as programs have it."""
    folder = tmp_path_factory.mktemp("regions")
    csrc = Path(program_objects.__file__).parent / "csrc"
    files = [folder / f"regions_{number}.so" for number in (1, 2)]
    command = ["g++", "-shared", "-fPIC", "-fopenmp", "-O1", "-std=c++20", f"-I{csrc}", str(REGIONS)]
    command += [str(program_objects.compiled("openmp_calls"))]
    for file in files:
        subprocess.run([*command, "-o", str(file)], check=True)
    return files


@pytest.fixture
def regions(compiled):
    """The first library, with two threads."""
    code = ctypes.CDLL(str(compiled[0]))
    code.set_threads(2)
    yield code
    code.set_threads(1)


def run_script(compiled, body, *, timeout=60):
    """Run *body* in another process, which has the libraries as ``first`` and ``second`` with two threads."""
    first, second = map(str, compiled)
    lines = [
        "import ctypes, os, sys, threading, time",
        f"first, second = ctypes.CDLL({first!r}), ctypes.CDLL({second!r})",
        "first.set_threads(2)",
        "zeros = (ctypes.c_int * 100)()",
        "def region(code): return code.count_regions(100, 100, (ctypes.c_int * 100)())",
        body,
    ]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], timeout=timeout, capture_output=True, text=True, check=False
    )


def test_shares(regions):
    """A static schedule gives each share a run of iterations, whichever thread takes it."""
    found = (ctypes.c_int * 10)()

    assert regions.shares_of(10, 5, found) == 5

    assert list(found) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_every_iteration_runs_once(regions):
    """In each of many regions, short ones and long ones."""
    assert regions.count_regions(20_000, 3, (ctypes.c_int * 3)())
    assert regions.count_regions(300, 50_000, (ctypes.c_int * 50_000)())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shares", [2, 3, 16])
def test_barriers(regions, threads, shares):
    """No share passes before all arrive, although threads may have to run several shares in turns."""
    regions.set_threads(threads)
    values = (ctypes.c_int * shares)(*range(shares))

    regions.rotate(shares, 101, values)

    assert list(values) == [(share + 101) % shares + 101 for share in range(shares)]


@pytest.mark.parametrize("threads", [1, 2])
def test_single(regions, threads):
    """One share runs the block, and the others wait for it."""
    regions.set_threads(threads)
    seen = ctypes.c_int()

    assert regions.count_singles(3, 50, ctypes.byref(seen)) == 50
    assert seen.value == 150


def test_nested_regions_have_one_share(regions):
    """And end with the share that began them."""
    assert regions.nested_shares(2) == 1


def test_outside_of_regions(regions):
    """There is one share, numbered 0."""
    regions.count_regions(1, 3, (ctypes.c_int * 3)())

    assert regions.shares_outside() == 1


def test_several_threads_work(regions):
    """Each takes a share, if shares take long enough."""
    threads = (ctypes.c_int * 2)()

    # The second thread may begin late on a busy machine.
    assert any(regions.threads_of(2, threads) or threads[0] != threads[1] for _ in range(100))


def test_callers_at_once(regions):
    """A caller that finds the pool in use runs all shares itself."""
    wrong = []

    def call(shares):
        regions.set_threads(2)
        for _ in range(200):
            values = (ctypes.c_int * shares)(*range(shares))
            regions.rotate(shares, 7, values)
            if list(values) != [(share + 7) % shares + 7 for share in range(shares)]:
                wrong.append(list(values))
            if not regions.count_regions(10, 100, (ctypes.c_int * 100)()):
                wrong.append(shares)

    callers = [threading.Thread(target=call, args=(shares,)) for shares in (2, 3, 4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert wrong == []


def test_libraries_share_the_pool(compiled):
    """Programs of several widths have one set of threads."""
    found = run_script(
        compiled,
        "assert region(first) and region(second)\nprint(len(os.listdir('/proc/self/task')))",
    )

    assert (found.stdout, found.stderr) == ("2\n", "")


def test_torchs_threads_are_let_go(compiled):
    """Where they and the pool's are more than there are processors; torch starts them again."""
    body = """
import torch
threads = max(2, len(os.sched_getaffinity(0)))
torch.set_num_threads(threads)
def tasks(): return len(os.listdir('/proc/self/task'))
assert region(first)
alone = tasks()
for _ in range(3):
    assert torch.ones(1 << 20).add(1).sum() == 1 << 21
    assert tasks() == alone + threads - 1, tasks()
    assert region(first)
    assert tasks() == alone, tasks()
"""
    found = run_script(compiled, body)

    assert (found.stdout, found.stderr) == ("", "")


def test_fork(compiled):
    """A forked child, which has none of the threads, makes its own; even if forked amid a region."""
    body = """
stop = []
def work():
    first.set_threads(2)
    while not stop: region(first)
other = threading.Thread(target=work)
other.start()
assert region(second)
for _ in range(20):
    child = os.fork()
    if not child:
        right = region(first) and region(second)
        os._exit(0 if right and len(os.listdir('/proc/self/task')) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.append(True)
other.join()
assert region(first)
"""
    found = run_script(compiled, body)

    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("before", ["region(first)", "True"], ids=["after a region", "before the first"])
def test_fork_after_torch(compiled, before):
    """A forked child does not wait for threads that torch had in its parent."""
    body = f"""
import signal, torch
torch.set_num_threads(max(2, len(os.sched_getaffinity(0))))
assert {before}
assert torch.ones(1 << 20).add(1).sum() == 1 << 21
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(0 if region(first) and region(second) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    found = run_script(compiled, body)

    assert (found.returncode, found.stderr) == (0, "")


def test_threads_that_cannot_be_made(compiled):
    """A region does not wait for them, and they are tried again after some regions."""
    body = """
import resource
first.set_threads(4)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), unlimited[1]))
assert region(first) and first.helpers() == 0
resource.setrlimit(resource.RLIMIT_AS, unlimited)
assert region(second) and first.helpers() == 0
for _ in range(10): assert region(second)
print(first.helpers(), len(os.listdir("/proc/self/task")))
"""
    found = run_script(compiled, body)

    assert (found.stdout, found.stderr) == ("3 4\n", "")


@pytest.mark.parametrize("sleep", ["0", "0.01"])
def test_exit(compiled, sleep):
    """A process ends while its threads wait, awake or asleep."""
    found = run_script(compiled, f"region(first)\ntime.sleep({sleep})")

    assert (found.returncode, found.stderr) == (0, "")


def test_unloading(compiled):
    """The code that threads run stays when a program is unloaded."""
    body = """
import _ctypes
region(first)
_ctypes.dlclose(first._handle)
assert region(second)
"""
    found = run_script(compiled, body)

    assert (found.returncode, found.stderr) == (0, "")


def test_idle_threads_sleep(compiled):
    """They take no processor time after a moment."""
    body = "region(first)\ntime.sleep(0.5)\nbefore = time.process_time()\ntime.sleep(1)\n"
    found = run_script(compiled, body + "print(time.process_time() - before < 0.1)")

    assert (found.stdout, found.stderr) == ("True\n", "")
