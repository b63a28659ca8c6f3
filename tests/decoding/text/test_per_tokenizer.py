"""One value for each tokenizer, as long as both are the same."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from decodekit.decoding import Batcher, BeamSearch, Generator, MaxNewTokens, StopStrings, TokenHealing
from decodekit.decoding.text.detokenizer import Detokenizer
from decodekit.decoding.text.per_tokenizer import PerTokenizer, tokenizers_unchanged
from decodekit.processors import ForcedPrefix
from decodekit.testing import ScriptedDecoder


def tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def a_new_list(tokenizer: Any) -> list[int]:
    return []


def test_is_made_once() -> None:
    """For each tokenizer its own."""
    values, one, other = PerTokenizer(a_new_list), tokenizer(), tokenizer()

    assert values.of(one) is values.of(one)
    assert values.of(other) is not values.of(one)


CHANGES = {
    "add-tokens": lambda t: t.add_tokens(["c"]),
    "now-special": lambda t: t.add_tokens(["b"], special_tokens=True),
    "added-now-special": lambda t: t.add_tokens(["added"], special_tokens=True),
    "role": lambda t: setattr(t, "eos_token", "b"),
    "decoder": lambda t: setattr(t.backend_tokenizer, "decoder", decoders.Fuse()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tokenizer_gets_another(change: str) -> None:
    """Whatever was changed that its text depends on."""
    values, changing = PerTokenizer(a_new_list), tokenizer()
    changing.add_tokens(["added"])
    before = values.of(changing)
    CHANGES[change](changing)

    assert values.of(changing) is not before
    assert values.of(changing) is values.of(changing)


def test_texts_follow_the_change() -> None:
    """What a token was known to be is forgotten when it has become special."""
    changing = tokenizer()

    assert Detokenizer(changing).push([0, 1]) == "a b"
    changing.add_tokens(["b"], special_tokens=True)
    assert Detokenizer(changing).push([0, 1]) == "a"
    assert Detokenizer(changing, skip_special_tokens=False).push([0, 1]) == "a b"


def test_slow_tokenizers_are_known_too() -> None:
    """Their added tokens are no dictionary of the library's."""
    values, slow = PerTokenizer(a_new_list), ByT5Tokenizer()
    before = values.of(slow)

    assert before is values.of(slow)
    slow.add_tokens(["word"])
    assert before is not values.of(slow)


def test_goes_with_its_tokenizer() -> None:
    """Nothing keeps either alive."""
    values = PerTokenizer(a_new_list)
    for _ in range(3):
        values.of(tokenizer())
    gc.collect()

    assert values._known == {}


class Strange:
    """Looks like a tokenizer, equals all others, and cannot be referenced weakly."""

    __slots__ = ("added_tokens_decoder",)
    all_special_ids = ()
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return True


class Referable(Strange):
    """The same, but for that."""

    __slots__ = ("__weakref__",)


def test_what_cannot_be_kept_is_made_anew() -> None:
    """No weak reference, or no way to see a change."""
    values, strange, bare = PerTokenizer(a_new_list), Strange(), object()

    assert values.of(strange) is not values.of(strange)
    assert values.of(bare) is not values.of(bare)
    assert values._known == {}


def test_equal_is_not_the_same() -> None:
    """Equal tokenizers may become different, and no hash is needed."""
    values, one, other = PerTokenizer(a_new_list), Referable(), Referable()

    assert one == other
    assert values.of(one) is values.of(one)
    assert values.of(one) is not values.of(other)


def test_threads_get_the_same() -> None:
    """However many ask at once."""
    values, shared, got = PerTokenizer(a_new_list), tokenizer(), []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        got.append(values.of(shared))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 8
    assert all(value is got[0] for value in got)


def test_a_block_without_changes_ends() -> None:
    """Inside it a tokenizer is examined once; after it a change is seen again."""
    values, changing = PerTokenizer(a_new_list), tokenizer()
    with tokenizers_unchanged():
        before = values.of(changing)
        with tokenizers_unchanged():
            changing.add_tokens(["c"])

        assert values.of(changing) is before
    assert values.of(changing) is not before


class CountsExaminations(PreTrainedTokenizerFast):
    """Counts how often its added tokens are read."""

    examinations = 0

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        type(self).examinations += 1
        return super().added_tokens_decoder


def counting() -> CountsExaminations:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "bb": 2}, unk_token="a"))
    return CountsExaminations(tokenizer_object=backend)


def texts_of_a_generator(tokenizer: Any, decoder: ScriptedDecoder, count: int) -> Any:
    stop = StopStrings("xyz", tokenizer) | MaxNewTokens(2)
    return lambda: Generator(decoder, tokenizer=tokenizer, stop=stop)([[0, 1]] * count).text


def texts_of_a_batcher(tokenizer: Any, decoder: ScriptedDecoder, count: int) -> Any:
    stop = StopStrings("xyz", tokenizer) | MaxNewTokens(2)
    parts = Generator(decoder, tokenizer=tokenizer, stop=stop).parts
    return lambda: Batcher(decoder).submit_many(parts, [[0, 1]] * count).result().text


def texts_of_beams(tokenizer: Any, decoder: ScriptedDecoder, count: int) -> Any:
    search = BeamSearch(decoder, beams=2, tokenizer=tokenizer, stop=MaxNewTokens(2))
    return lambda: search([[0, 1]] * count).text


def texts_of_healed_prompts(tokenizer: Any, decoder: ScriptedDecoder, count: int) -> Any:
    stop = StopStrings("xyz", tokenizer) | MaxNewTokens(2)
    healing = TokenHealing(Generator(decoder, tokenizer=tokenizer, stop=stop), ForcedPrefix)
    return lambda: healing([[0, 1]] * count).text


@pytest.mark.parametrize(
    "prepare", [texts_of_a_generator, texts_of_a_batcher, texts_of_beams, texts_of_healed_prompts]
)
def test_a_call_examines_a_tokenizer_no_oftener_for_more_prompts(
    prepare: Callable[[Any, ScriptedDecoder, int], Callable[[], Any]],
) -> None:
    """With stop strings, and several times as many prompts as rows."""
    decoder, counts = ScriptedDecoder(torch.rand(7, 3), batch_size=2), []
    for count in (3, 12):
        known = counting()
        run = prepare(known, decoder, count)
        # What is cached per tokenizer is there.
        run()
        CountsExaminations.examinations = 0
        run()
        counts.append(CountsExaminations.examinations)

    assert counts[0] == counts[1]
