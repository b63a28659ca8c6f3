"""Environment variables of Neuron's runtime and compiler."""

import os
import shlex
import sys
from types import SimpleNamespace

import pytest
import torch

from decodekit.neuron_backend import NativeTarget, TracedTarget
from decodekit.neuron_backend.targets.neuron.neuron_environment import (
    CACHE_FOLDER,
    COMPILER_ARGUMENTS,
    CORES,
    LOGICAL_CORES,
    NO_FALLBACK,
    compiler_arguments,
    cores_of_rank,
    environment_variables,
    with_logical_cores,
)


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, before and after a test."""
    for name in (CORES, CACHE_FOLDER, LOGICAL_CORES, NO_FALLBACK, COMPILER_ARGUMENTS):
        monkeypatch.setenv(name, "to be removed")
        monkeypatch.delenv(name)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that has started."""
    monkeypatch.setitem(sys.modules, "torch_neuronx", SimpleNamespace())
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(is_initialized=lambda: True), raising=False)


def test_what_this_process_has_set_may_change() -> None:
    """A strict decoder after another; after a failure it is as before. What a launcher set is refused."""
    with environment_variables({NO_FALLBACK: "0"}):
        pass
    with pytest.raises(KeyError), environment_variables({NO_FALLBACK: "1"}):
        raise KeyError
    assert "0" == os.environ[NO_FALLBACK]
    with environment_variables({NO_FALLBACK: "1"}):
        pass
    assert "1" == os.environ[NO_FALLBACK]

    os.environ[NO_FALLBACK] = "0"
    with pytest.raises(ValueError, match="must be unset or '1'"), environment_variables({NO_FALLBACK: "1"}):
        pass


class TestCoresOfRank:
    """The cores of one of several processes on a machine."""

    @pytest.fixture(autouse=True)
    def second_of_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variables that torchrun sets."""
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    @pytest.mark.parametrize(
        ("cores", "expected"), [(None, "1"), ("4,5", "5"), ("6-7", "7"), ("9,4", "4"), ("3-3,9", "9")]
    )
    def test_are_one_of_them(self, cores: str | None, expected: str) -> None:
        """The processes have different ones."""
        assert expected == cores_of_rank(cores)

    @pytest.mark.parametrize("cores", ["4", "4-7", "0,2-3"])
    def test_must_be_as_many_as_processes(self, cores: str) -> None:
        """Otherwise one would be idle, or shared."""
        with pytest.raises(ValueError, match=f"'cores' must be one for each of 2 processes: got '{cores}'"):
            cores_of_rank(cores)

    def test_are_the_launchers_if_it_gives_any(self) -> None:
        """The launcher knows what else runs on the machine."""
        os.environ[CORES] = "8"

        assert cores_of_rank(None) is None

    def test_of_a_process_alone_are_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However it was started."""
        monkeypatch.delenv("LOCAL_RANK")
        monkeypatch.delenv("LOCAL_WORLD_SIZE")

        assert "4" == cores_of_rank("4")


class TestEnvironmentVariables:
    def test_sets_variables_permanently(self) -> None:
        """The runtime may read them later."""
        with environment_variables({CORES: "4-7", NO_FALLBACK: "1"}):
            pass

        assert ("4-7", "1") == (os.environ[CORES], os.environ[NO_FALLBACK])

    def test_a_failure_unsets_them(self) -> None:
        """Only those that it has set."""
        os.environ[NO_FALLBACK] = "1"
        with pytest.raises(ZeroDivisionError), environment_variables({CORES: "4-7", NO_FALLBACK: "1"}):
            _ = 1 // 0

        assert (None, "1") == (os.environ.get(CORES), os.environ.get(NO_FALLBACK))

    def test_a_failure_keeps_what_a_runtime_has_read(self, request: pytest.FixtureRequest) -> None:
        """The same target can be tried again: the runtime works with these."""
        wanted = {CORES: "4-7", NO_FALLBACK: "1"}

        def compiles() -> None:
            with environment_variables(wanted):
                request.getfixturevalue("started")
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            compiles()

        assert ("4-7", None) == (os.environ[CORES], os.environ.get(NO_FALLBACK))
        with environment_variables(wanted):
            assert "1" == os.environ[NO_FALLBACK]

    def test_does_not_overwrite_a_launchers_cores(self) -> None:
        """If one cannot be set, none is."""
        os.environ[CORES] = "0,1"

        with (
            pytest.raises(ValueError, match=f"{CORES} must be unset or '4', as the target says: got '0,1'"),
            environment_variables({NO_FALLBACK: "1", CORES: "4"}),
        ):
            pass

        assert NO_FALLBACK not in os.environ

    @pytest.mark.usefixtures("started")
    @pytest.mark.parametrize("name", [CORES, CACHE_FOLDER])
    def test_refuses_variables_that_were_read_already(self, name: str) -> None:
        """They are not read again."""
        with (
            pytest.raises(ValueError, match=f"{name} must be set before the Neuron runtime starts: got '3'"),
            environment_variables({name: "3"}),
        ):
            pass

        assert name not in os.environ

    @pytest.mark.usefixtures("started")
    def test_accepts_variables_that_are_read_later_or_unchanged(self) -> None:
        """The same cores again, and a variable that each execution reads."""
        os.environ[CORES] = "3"
        with environment_variables({CORES: "3", NO_FALLBACK: "1"}):
            pass

        assert "1" == os.environ[NO_FALLBACK]


class TestCompilerArguments:
    @pytest.mark.parametrize(
        ("before", "inside"), [(None, "-O1 --lnc=1"), ("--verbose=info", "--verbose=info -O1 --lnc=1")]
    )
    def test_are_appended(self, before: str | None, inside: str) -> None:
        """For the body only, even if it raises."""
        if before is not None:
            os.environ[COMPILER_ARGUMENTS] = before
        seen = []

        def compiles() -> None:
            with compiler_arguments(("-O1", "--lnc=1")):
                seen.append(os.environ[COMPILER_ARGUMENTS])
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            compiles()

        assert [inside] == seen
        assert before == os.environ.get(COMPILER_ARGUMENTS)

    @pytest.mark.parametrize("arguments", [("-O1", "--lnc=1"), ("--options='x'", '--more="y"', "\\")])
    def test_are_divided_at_white_space(self, arguments: tuple[str, ...]) -> None:
        """As TorchNeuron does, which knows no quotes."""
        with compiler_arguments(NativeTarget(compiler_args=arguments).compiler_args):
            assert list(arguments) == os.environ[COMPILER_ARGUMENTS].split()

    @pytest.mark.parametrize("argument", ["--options=--overlap --factor=2", "-O1\t", ""])
    def test_that_would_be_divided_are_refused(self, argument: str) -> None:
        """By the native target; the traced one keeps their quotes."""
        with pytest.raises(
            ValueError, match=r"'compiler_args' must be arguments without white space: got \["
        ):
            NativeTarget(compiler_args=("-O1", argument))

        traced = TracedTarget().with_compiler_args(["-O1", argument])
        assert ["-O1", argument] == shlex.split(traced.compiler_args)

    def test_of_none_change_nothing(self) -> None:
        """Not to an empty string either."""
        with compiler_arguments(()):
            assert COMPILER_ARGUMENTS not in os.environ


class TestWithLogicalCores:
    """The compiler's ``--lnc`` follows the runtime's variable."""

    def test_without_the_variable_nothing_is_added(self) -> None:
        """Both have the machine's default."""
        assert ("-O1",) == with_logical_cores(["-O1"])

    def test_the_runtimes_number_is_added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the arguments given."""
        monkeypatch.setenv(LOGICAL_CORES, "1")

        assert ("-O1", "--lnc=1") == with_logical_cores(("-O1",))

    @pytest.mark.parametrize(
        "arguments", [["--lnc=1"], ["-O1", "--lnc", "1"], ["-lnc", "1"], ["--logical-nc-config=1", "-O1"]]
    )
    def test_it_is_given_once(self, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        """In every spelling."""
        monkeypatch.setenv(LOGICAL_CORES, "1")

        assert tuple(arguments) == with_logical_cores(arguments)

    @pytest.mark.parametrize(("flags", "arguments"), [("", ["--lnc=2"]), ("-O1 --lnc 2", [])])
    def test_another_number_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, flags: str, arguments: list[str]
    ) -> None:
        """Programs would not run on the cores."""
        monkeypatch.setenv(LOGICAL_CORES, "1")
        monkeypatch.setenv(COMPILER_ARGUMENTS, flags)

        with pytest.raises(ValueError, match="--lnc must be 1, as NEURON_LOGICAL_NC_CONFIG says: got 2"):
            with_logical_cores(arguments)
