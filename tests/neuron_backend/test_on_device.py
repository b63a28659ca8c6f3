"""Rules for skipping and failing device tests, and for comparing texts."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder
from decodekit.neuron_backend.targets.neuron.detect import NeuronFound

from . import on_device
from .on_device import PARTS, PROMPTS, Pair


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> NeuronFound:
    """A device of the driver, without a package."""
    found = NeuronFound("none", "no torch-neuronx is installed", devices=1)
    monkeypatch.setattr(on_device, "probe", lambda: found)
    return found


class TestRequirements:
    def test_no_device_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With what was looked for; not skipped, which would go unnoticed."""
        monkeypatch.setattr(on_device, "probe", lambda: NeuronFound("none", "no torch-neuronx is installed"))

        with pytest.raises(pytest.fail.Exception, match=r"machine has none\nAWS Neuron: none; no t"):
            on_device.require_device()

    def test_a_device_without_packages_is_one(self, found: NeuronFound) -> None:
        """Found by the driver."""
        assert found is on_device.require_device()

    def test_a_missing_kind_is_skipped_by_name(self, found: NeuronFound) -> None:
        """No machine has all packages."""
        with pytest.raises(pytest.skip.Exception, match=r"torch-neuronx 2\.9 is not installed: no torch-"):
            on_device.require_kind(found, "traced", "torch-neuronx 2.9")

    def test_the_kind_that_is_there_is_not(self) -> None:
        """The test is not skipped."""
        on_device.require_kind(NeuronFound("traced", "", devices=1), "traced", "torch-neuronx 2.9")

    def test_a_missing_module_is_skipped_by_name(self) -> None:
        """With the command that installs it."""
        with pytest.raises(pytest.skip.Exception, match=r"^some-package is not installed: pip install"):
            on_device.require_module("no_such_module_of_anybody", "some-package")

    def test_a_module_that_is_there_is_given(self) -> None:
        """Any importable module."""
        assert subprocess is on_device.require_module("subprocess", "Python")


class TestCompilerForbidden:
    def test_a_compiler_is_refused(self) -> None:
        """Before it is started; there is no compiler here."""
        with (
            on_device.compiler_forbidden(),
            pytest.raises(pytest.fail.Exception, match="must not run"),
        ):
            subprocess.run(["neuronx-cc", "compile", "graph.hlo"], check=True)

    def test_others_are_not(self) -> None:
        """Afterwards, it may be started again."""
        start = subprocess.Popen.__init__
        with on_device.compiler_forbidden():
            subprocess.run([sys.executable, "-c", ""], check=True)

        assert start is subprocess.Popen.__init__


class TestPair:
    """Texts on a device whose logits differ a little, or much."""

    @pytest.fixture
    def decoders(self, tiny_model: Callable[[str], PreTrainedModel]) -> tuple[StaticDecoder, StaticDecoder]:
        """Decoders of two models."""
        first, second = (
            StaticDecoder(tiny_model(name), batch_size=2, max_length=48, widths=(1, 16))
            for name in ("llama", "mistral")
        )
        return first, second

    def test_another_text_is_refused_where_it_must_be_the_same(
        self, decoders: tuple[StaticDecoder, StaticDecoder]
    ) -> None:
        """On stand-ins."""
        with pytest.raises(AssertionError):
            Pair(decoders[1], decoders[0], exact=True).check(PARTS["greedy"])

    def test_another_text_is_refused_if_the_logits_are_the_same(
        self, decoders: tuple[StaticDecoder, StaticDecoder]
    ) -> None:
        """The difference is larger than rounding."""
        pair = Pair(decoders[0], decoders[0], exact=False)
        texts = [Generator(one, record_gap=True, stop=MaxNewTokens(20))(PROMPTS) for one in decoders]

        pair.check_texts(texts[0], texts[0])
        with pytest.raises(AssertionError):
            pair.check_texts(texts[0], texts[1])
