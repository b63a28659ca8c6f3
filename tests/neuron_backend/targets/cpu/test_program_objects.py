"""The thread pool and the release of Python's lock, linked into compiled programs."""

import contextlib
import shutil
import subprocess
import sys
import threading
import time
import zipfile

import pytest
import torch
from torch import nn

from decodekit.neuron_backend.lowering.export import without_known_warnings
from decodekit.neuron_backend.targets.cpu import program_objects, toolchain

pytestmark = pytest.mark.skipif(
    toolchain.lack() is not None or not program_objects.has_pool(), reason="needs g++ on Linux"
)

ROWS, COLUMNS = 300, 20_000


def test_an_object_that_was_deleted_is_made_again(tmp_path, monkeypatch):
    """The folder of what is kept may be deleted while a process runs."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))
    program_objects._compiled.cache_clear()
    try:
        first = program_objects.compiled("python_lock")
        shutil.rmtree(tmp_path / "cache")

        assert first == program_objects.compiled("python_lock")
        assert first.is_file()
    finally:
        program_objects._compiled.cache_clear()


class Loops(nn.Module):
    """Loops that the compiler runs in parallel, one of which needs what another wrote."""

    def forward(self, x):
        """Of ``[ROWS, COLUMNS]``."""
        smooth = torch.sin(x) + torch.softmax(x, -1)
        return smooth.sum(-1), smooth - smooth.amax(0)


@contextlib.contextmanager
def on_two_threads():
    """Restore torch's setting afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A program compiled for two threads, with the objects but without kernels."""
    from torch._inductor import aoti_compile_and_package

    file = str(tmp_path_factory.mktemp("program") / "program.pt2")
    with on_two_threads(), torch.no_grad(), without_known_warnings(), program_objects.linked() as options:
        exported = torch.export.export(Loops(), (torch.zeros(ROWS, COLUMNS),))
        return aoti_compile_and_package(exported, package_path=file, inductor_configs=options)


@pytest.fixture(scope="module")
def program(package):
    """The loaded program."""
    return torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)


@pytest.fixture
def x():
    """Normal numbers."""
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def test_calls_of_openmp_stay_within_the_program(package, tmp_path):
    """Only the number of threads is asked of torch's library."""
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        file = archive.extract(name, tmp_path)

    symbols = subprocess.run(["nm", file], check=True, capture_output=True, text=True).stdout

    lines = [line.split()[-2:] for line in symbols.splitlines()]
    named = {name.partition("@")[0]: kind for kind, name in lines if "GOMP_" in name or "omp_get" in name}
    assert named.pop("omp_get_max_threads") == "U"
    assert {"GOMP_parallel", "GOMP_barrier", "omp_get_thread_num"} <= named.keys()
    assert set(named.values()) == {"t"}


def test_results_at_any_number_of_threads(program, x):
    """They are those of the definition, and the same bits."""
    found = {}
    for threads in (2, 1, 3):
        with on_two_threads():
            torch.set_num_threads(threads)
            found[threads] = program.run([x])

    for sums, differences in found.values():
        assert torch.equal(sums, found[1][0])
        assert torch.equal(differences, found[1][1])
    for one, expected in zip(found[1], Loops()(x), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)


def test_beside_busy_processes(program, x):
    """Results are the same when there is no core for each thread."""
    alone = program.run([x])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with on_two_threads():
            found = [program.run([x]) for _ in range(20)]
    finally:
        for process in busy:
            process.kill()
            process.wait()

    assert all(torch.equal(one, other) for each in found for one, other in zip(each, alone, strict=True))


def test_callers_at_once(program, x):
    """Threads of Python that run a program at the same time get its results."""
    expected, found = program.run([x]), []

    def call():
        torch.set_num_threads(2)
        found.extend(program.run([x]) for _ in range(5))

    callers = [threading.Thread(target=call) for _ in range(3)]
    with on_two_threads():
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()

    assert len(found) == 15
    assert all(torch.equal(one, other) for each in found for one, other in zip(each, expected, strict=True))


def test_python_runs_meanwhile(program, x):
    """Another thread of Python counts while a program runs."""
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    # Longer than the test: a thread that keeps Python's lock is not interrupted.
    sys.setswitchinterval(1000)
    try:
        counter.start()

        def counts_during_a_run():
            before = counted[0]
            program.run([x])
            return counted[0] > before

        # The other thread may get no core during a run on a busy machine.
        assert any(counts_during_a_run() for _ in range(100))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        counter.join()


@pytest.mark.parametrize("enabled", [False, True])
def test_gradients_stay_as_they_were(program, x, enabled):
    """The function that releases the lock is the one that sets them."""
    with torch.set_grad_enabled(enabled):
        found = program.run([x])

        assert torch.is_grad_enabled() == enabled
    assert not any(tensor.requires_grad for tensor in found)


def test_nothing_is_linked_off_linux(monkeypatch):
    """There programs run on OpenMP's threads."""
    monkeypatch.setattr(sys, "platform", "darwin")

    with program_objects.linked() as options:
        assert options == {}
