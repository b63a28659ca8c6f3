"""
Wrapped decoders on a device, and over stand-ins of their libraries: see ``on_device``.

The model is made here and compiled by each library's own calls. The graphs are the library's, so they
are not linted.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from decodekit.neuron_backend import compile_decoder
from decodekit.speculation import DraftModel, PromptLookup
from decodekit.testing import check_decoder

from ..on_device import ON_DEVICE, PARTS, Pair, compiler_forbidden, require_device
from . import library_stand_ins
from .libraries import BATCH, CONTEXT, LENGTH, LIBRARIES, VERIFIED, Library


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, id="stand-in"), pytest.param(True, id="device", marks=ON_DEVICE)],
)
def on_device(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the real libraries are used."""
    if request.param:
        require_device()
        yield True
        return
    with library_stand_ins.installed():
        yield False


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """One of the libraries."""
    return LIBRARIES[request.param]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights, of sizes that every library takes, whose text varies."""
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("checkpoint")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for the compiled programs."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def pair(on_device: bool, library: Library, checkpoint: Path, programs: Path) -> Pair:
    """A wrapped decoder and an eager one; the cache holds the previous test's tokens."""
    wrapped = library.compile(checkpoint, programs / type(library).__name__)
    eager = compile_decoder(
        checkpoint, batch_size=BATCH, max_length=LENGTH, widths=(1, VERIFIED, CONTEXT), target="eager"
    )
    return Pair(wrapped, eager, exact=not on_device)


@pytest.mark.parametrize("parts", PARTS)
class TestText:
    def test_is_eagers(self, parts: str, pair: Pair) -> None:
        """Ragged prompts, encoded one by one or together."""
        pair.check(PARTS[parts])

    def test_is_eagers_with_a_draft_model(self, parts: str, pair: Pair, checkpoint: Path) -> None:
        """A draft model that is right in part: some draft tokens are accepted, the rest rewound."""
        draft = compile_decoder(
            checkpoint,
            batch_size=BATCH,
            max_length=LENGTH,
            widths=(1, 2, CONTEXT),
            target="eager",
            weights="int8",
        )
        found = pair.check(PARTS[parts], DraftModel(draft))

        assert 0 < sum(found.statistics.accepted)

    def test_is_eagers_with_prompt_lookup(self, parts: str, pair: Pair) -> None:
        """With draft tokens that are mostly wrong."""
        pair.check(PARTS[parts], PromptLookup())


@pytest.mark.mostly_slow(every=3)
def test_the_contract_is_kept(pair: Pair) -> None:
    """Rewinds, ragged rows, padding, the last position, refusals."""
    assert pair.compiled.shape.scored_width == VERIFIED

    check_decoder(pair.compiled)


def test_nothing_is_compiled_for_a_text(pair: Pair) -> None:
    """For any text."""
    before = list(library_stand_ins.COMPILED)
    with compiler_forbidden():
        pair.check(PARTS["greedy"], PromptLookup())
        pair.check(PARTS["sampled"])

    assert before == library_stand_ins.COMPILED


def test_a_saved_model_is_loaded(pair: Pair, library: Library, checkpoint: Path, programs: Path) -> None:
    """Nothing is compiled, and the text is the same."""
    before = list(library_stand_ins.COMPILED)
    with compiler_forbidden():
        loaded = library.load(checkpoint, programs / type(library).__name__)

    assert before == library_stand_ins.COMPILED
    assert pair.compiled.shape == loaded.shape
    Pair(loaded, pair.eager, pair.exact).check(PARTS["greedy"])
