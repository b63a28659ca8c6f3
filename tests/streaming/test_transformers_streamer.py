"""Streamers of decodekit under transformers' ``generate``, and Hugging Face's under decodekit."""

import asyncio
import functools
import io
import threading
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AsyncTextIteratorStreamer,
    PreTrainedTokenizerFast,
    TextIteratorStreamer,
    TextStreamer as HuggingFaceTextStreamer,
)

from decodekit.decoding import Draft, EndOfSequence, Generator, MaxNewTokens, Sample
from decodekit.decoding.results.events import Event
from decodekit.decoding.results.generation import Generation, collect
from decodekit.decoding.results.statistics import Statistics
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import SpeculativeGenerator
from decodekit.streaming import (
    BatchDisplay,
    ClosedError,
    FanOut,
    LatencyMeter,
    TextIterator,
    TextStreamer,
    TransformersStreamer,
)
from decodekit.testing import ScriptedDecoder

from .scripted_events import Recorder

VOCAB, EOS, PAD = 61, 2, 3


@functools.cache
def tokenizer() -> Any:
    """Words, and single bytes that may or may not make up characters: 61 tokens, as the tiny models have."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        "<pad>",
        "▁the",
        "▁a",
        "lo",
        "ng",
        "▁日本",
        "語",
        "é",
        "\n",
        "!",
        "👩‍👩‍👧",
    ]
    spelled = "한Я".encode() + bytes(range(0x80, 0x8F))
    pieces = words + [f"<0x{byte:02X}>" for byte in dict.fromkeys(spelled)]
    pieces += [f"▁w{i}" for i in range(VOCAB - len(pieces))]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def decode(ids: list[int], skip_special_tokens: bool = True) -> str:
    text: str = tokenizer().decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights of which a row often ends early."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=EOS,
        pad_token_id=PAD,
        bos_token_id=1,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def generated(model: Any, prompts: torch.Tensor, streamer: Any, **options: Any) -> list[list[int]]:
    """The new ids that ``generate`` returns, each row up to and including its end."""
    torch.manual_seed(7)
    output = model.generate(
        input_ids=prompts,
        attention_mask=torch.ones_like(prompts),
        streamer=streamer,
        max_new_tokens=24,
        **options,
    )
    rows: list[list[int]] = output[:, prompts.shape[1] :].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


def result_of(recorder: Recorder, prompts: torch.Tensor) -> Generation:
    assert prompts.tolist() == recorder.told[0]
    assert ["end"] == recorder.last_words == recorder.told[-1:]
    return collect(recorder.events, prompts.tolist(), Statistics())


MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 0},
    "prompt lookup": {"do_sample": False, "prompt_lookup_num_tokens": 3},
    "several": {"do_sample": True, "num_return_sequences": 3},
}


class TestUnderGenerate:
    """``model.generate(..., streamer=TransformersStreamer(...))``."""

    @pytest.mark.parametrize("skip_special_tokens", [True, False])
    @pytest.mark.parametrize(
        ("mode", "rows"),
        # Assisted decoding takes one row.
        [(mode, rows) for mode in MODES for rows in (1, 2, 5) if mode != "prompt lookup" or rows == 1],
    )
    def test_events_add_up_to_what_it_returns(
        self, model: Any, mode: str, rows: int, skip_special_tokens: bool
    ) -> None:
        """Ids without padding, the tokenizer's text of them, and an ending for each row."""
        ended = 0
        for start in range(4):
            prompts = torch.arange(4, 4 + 6 * rows).reshape(rows, 6) % VOCAB + start
            recorder = Recorder()
            streamer = TransformersStreamer(recorder, tokenizer(), skip_special_tokens=skip_special_tokens)
            expected = generated(model, prompts, streamer, **MODES[mode])
            repeated = prompts.repeat_interleave(len(expected) // rows, dim=0)
            result = result_of(recorder, repeated)

            assert expected == result.ids
            assert [decode(row, skip_special_tokens) for row in expected] == result.text
            for row, finish in zip(expected, result.finishes, strict=True):
                assert finish is not None
                assert ("end_of_sequence" if row[-1] == EOS else "stopped") == finish.reason
                ended += row[-1] == EOS

        if rows > 1:
            assert ended  # some row was padded while others went on

    def test_several_tokens_of_assisted_decoding(self, model: Any) -> None:
        """Several tokens at once, of which the end of the sequence may be one."""
        sizes = set()
        for start in range(6):
            prompts, recorder = torch.arange(4, 10)[None] + start, Recorder()
            streamer = TransformersStreamer(recorder, tokenizer())
            expected = generated(model, prompts, streamer, assistant_model=model, do_sample=False)
            result = result_of(recorder, prompts)
            sizes |= {len(event.ids) for event in recorder.events}

            assert expected == result.ids
            assert [decode(row) for row in expected] == result.text

        assert max(sizes) > 2

    def test_text_comes_as_soon_as_it_is_final(self, model: Any) -> None:
        """With the token that completes it, and what is held back at the end."""
        recorder = Recorder()
        streamer = TransformersStreamer(recorder, tokenizer())
        streamer.put(torch.tensor([[4]]))
        spelled = tokenizer().convert_tokens_to_ids(["<0xED>", "<0x95>", "<0x9C>", "▁the", "<0xED>"])
        for token in spelled:
            streamer.put(torch.tensor([token]))
        streamer.end()

        assert ["", "", "", "한 the", "", "\ufffd"] == [event.text for event in recorder.events]

    @pytest.mark.parametrize("eos", [5, [9, 5], torch.tensor([5]), ()], ids=str)
    def test_what_ends_a_sequence_can_be_said(self, eos: Any) -> None:
        """As the model's own configuration does; tokens after it, in the same step or later, are padding."""
        recorder = Recorder()
        streamer = TransformersStreamer(recorder, tokenizer(), eos_token_id=eos)
        streamer.put(torch.tensor([[4], [4]]))
        streamer.put(torch.tensor([6, 7]))
        streamer.put(torch.tensor([[5, 8], [2, 7]]))
        streamer.put(torch.tensor([8, 8]))
        streamer.end()
        result = result_of(recorder, torch.tensor([[4], [4]]))

        assert [[6, 5] if eos != () else [6, 5, 8, 8], [7, 2, 7, 8]] == result.ids

    def test_without_a_tokenizer_there_is_no_text(self, model: Any) -> None:
        """And no end of a sequence but the one that is given."""
        recorder, prompts = Recorder(), torch.arange(4, 10).reshape(2, 3)
        expected = generated(model, prompts, TransformersStreamer(recorder, eos_token_id=EOS))

        assert expected == result_of(recorder, prompts).ids
        assert {None} == {event.text for event in recorder.events}

    def test_a_row_that_gets_no_token(self) -> None:
        """Ends all the same."""
        recorder = Recorder()
        streamer = TransformersStreamer(recorder, tokenizer())
        streamer.put(torch.zeros(2, 0, dtype=torch.int64))
        streamer.end()

        assert [(0, (), "", "stopped"), (1, (), "", "stopped")] == [
            (event.row, event.ids, event.text, event.finish and event.finish.reason)
            for event in recorder.events
        ]

    def test_our_streamers(self, model: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """A printed row, and a batch on display and measured; the same one again."""
        prompts = torch.arange(4, 10)[None]
        expected = decode(generated(model, prompts, TransformersStreamer(TextStreamer(), tokenizer()))[0])

        assert expected + "\n" == capsys.readouterr().out

        file, meter = io.StringIO(), LatencyMeter()
        both = TransformersStreamer(FanOut(BatchDisplay(file), meter), tokenizer())
        prompts = prompts.repeat(2, 1)
        for _ in range(2):
            ids = generated(model, prompts, both, do_sample=True)
            text = "".join(f"[{row}] {line}\n" for row, i in enumerate(ids) for line in decode(i).split("\n"))

            assert sorted(text.split("\n")) == sorted(file.getvalue().split("\n"))
            assert sum(map(len, ids)) == sum(row.tokens for row in meter.rows[-2:])
            file.truncate(0)
            file.seek(0)

    def test_a_reader_in_another_thread_learns_of_errors(self, model: Any) -> None:
        """Of the model's, while it runs, and of arguments that are refused before anything is put."""

        def failing(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if ids.shape[1] > 8:
                raise RuntimeError("device")
            return scores

        for options, error in [
            ({"logits_processor": [failing]}, RuntimeError),
            ({"num_beams": 2}, ValueError),
        ]:
            with TextIterator(timeout=10) as pieces:

                def run(pieces: TextIterator = pieces, options: Any = options) -> None:
                    with TransformersStreamer(pieces, tokenizer()) as streamer:
                        generated(model, torch.arange(4, 10)[None], streamer, **options)

                raised: list[BaseException] = []

                def guarded(run: Any = run, raised: Any = raised) -> None:
                    try:
                        run()
                    except BaseException as caught:
                        raised.append(caught)

                thread = threading.Thread(target=guarded)
                thread.start()
                with pytest.raises(error):
                    list(pieces)
                thread.join(10)

                assert [error] == [type(one) for one in raised]

    def test_an_error_behind_the_end_is_not_the_generations(self, model: Any) -> None:
        """The streamer has heard of the end."""

        def run(streamer: TransformersStreamer) -> None:
            with streamer:
                generated(model, torch.arange(4, 10)[None], streamer)
                raise ZeroDivisionError

        recorder = Recorder()
        with pytest.raises(ZeroDivisionError):
            run(TransformersStreamer(recorder, tokenizer()))

        assert ["end"] == recorder.last_words

    def test_each_block_is_another_generation(self, model: Any) -> None:
        """An error in the second is told though the first has ended."""

        def run(streamer: TransformersStreamer, prompts: Any) -> None:
            with streamer:
                generated(model, prompts, streamer)

        recorder = Recorder()
        streamer = TransformersStreamer(recorder, tokenizer())
        run(streamer, torch.arange(4, 10)[None])
        with pytest.raises(TypeError) as caught:
            run(streamer, None)

        assert ["end", ("fail", caught.value)] == recorder.last_words

    def test_a_prompt_without_a_batch(self) -> None:
        """Is one row, as it is for Hugging Face's own streamers."""
        recorder = Recorder()
        streamer = TransformersStreamer(recorder, tokenizer())
        streamer.put(torch.tensor([4, 5]))
        streamer.put(torch.tensor([6, 7, 8]))
        streamer.end()

        assert [[6, 7, 8]] == result_of(recorder, torch.tensor([[4, 5]])).ids

    @pytest.mark.parametrize("error", [ClosedError("nobody"), OSError("full")], ids=repr)
    def test_what_the_streamer_raises_ends_generate(self, model: Any, error: Exception) -> None:
        """It goes through; the streamer hears of the end once, and the next generation is a new one."""
        recorder, prompts = Recorder(error, at=3), torch.arange(4, 10).reshape(2, 3)
        with (
            pytest.raises(type(error)) as caught,
            TransformersStreamer(recorder, tokenizer()) as streamer,
        ):
            generated(model, prompts, streamer)

        assert error is caught.value
        assert ["end" if isinstance(error, ClosedError) else ("fail", error)] == recorder.last_words
        recorder.told.clear()
        recorder.error = None

        assert generated(model, prompts, streamer) == result_of(recorder, prompts).ids

    def test_a_tokenizer_that_raises(self) -> None:
        """Fails the generation, as the streamer learns at once."""

        class Broken:
            def __getattr__(self, name: str) -> Any:
                if name == "decode":
                    raise LookupError("no such id")
                return getattr(tokenizer(), name)

        recorder = Recorder()
        streamer = TransformersStreamer(recorder, Broken())
        streamer.put(torch.tensor([[4]]))
        with pytest.raises(LookupError) as caught:
            streamer.put(torch.tensor([5]))

        assert [("fail", caught.value)] == recorder.last_words

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"streamer": print}, "'streamer' must have put_event"),
            ({"streamer": Recorder}, "'streamer' must have put_event"),
            ({"eos_token_id": "2"}, "'eos_token_id' must be a token id"),
            ({"eos_token_id": True}, "'eos_token_id' must be a token id"),
            ({"skip_special_tokens": 1}, "'skip_special_tokens' must be"),
        ],
        ids=str,
    )
    def test_senseless_options_are_refused(self, options: dict[str, Any], match: str) -> None:
        """At construction."""
        with pytest.raises(TypeError, match=match):
            TransformersStreamer(**{"streamer": Recorder(), **options})


def ours(model: Any, **options: Any) -> Generator:
    decoder = StaticDecoder(model, batch_size=1, max_length=64, widths=(1, 5, 16))
    stop = EndOfSequence(EOS) | MaxNewTokens(24)
    return Generator(decoder, sampler=Sample(seed=3), stop=stop, tokenizer=tokenizer(), **options)


class Guide:
    """What the transformers-neuronx guide shows: any object with ``put`` and ``end``."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = 0

    def put(self, tokens: torch.Tensor) -> None:
        self.tokens += tokens.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


class TestHuggingFacesUnderOurs:
    """``generator(prompt, streamer=...)`` with theirs, unchanged."""

    PROMPT = (4, 5, 6, 7, 8, 9)

    def test_text_streamer(self, model: Any, capsys: pytest.CaptureFixture[str]) -> None:
        """Prints what it prints of the same ids under ``generate``."""
        for skip_prompt in (True, False):
            streamer = HuggingFaceTextStreamer(tokenizer(), skip_prompt=skip_prompt, skip_special_tokens=True)
            result = ours(model)(list(self.PROMPT), streamer=streamer)
            printed = capsys.readouterr().out
            ids = result.ids[0] if skip_prompt else result.sequences[0]

            assert decode(ids) + "\n" == printed

    def test_text_iterator_streamer(self, model: Any) -> None:
        """In a thread."""
        streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=10, skip_special_tokens=True)
        results: list[Generation] = []
        thread = threading.Thread(
            target=lambda: results.append(ours(model)(list(self.PROMPT), streamer=streamer))
        )
        thread.start()
        text = "".join(streamer)
        thread.join(10)

        assert results[0].text == [text]

    def test_async_text_iterator_streamer(self, model: Any) -> None:
        """In an event loop."""

        async def main() -> tuple[str, Generation]:
            streamer = AsyncTextIteratorStreamer(
                tokenizer(), skip_prompt=True, timeout=10, skip_special_tokens=True
            )
            call = asyncio.ensure_future(asyncio.to_thread(ours(model), list(self.PROMPT), streamer=streamer))
            text = "".join([piece async for piece in streamer])
            return text, await call

        text, result = asyncio.run(main())

        assert result.text == [text]

    @pytest.mark.parametrize("num_draft_tokens", range(4))
    def test_any_object_with_put_and_end(self, num_draft_tokens: int) -> None:
        """Gets prompt and ids, one or several at a time, and one end."""

        class Same:
            """Drafts correctly, so that several tokens come at a time."""

            def propose(self, history: Any, budget: torch.Tensor, sample: Any) -> Any:
                n = int(budget.max())
                last = int(history.ids[0, 0, history.length[0, 0] - 1])
                return Draft(torch.tensor([[(last + 1 + i) % 7 for i in range(n)]]))

        table = torch.eye(7).roll(1, dims=1)
        decoder = ScriptedDecoder(table, line=lambda prefix: prefix[-1])
        guide = Guide()
        result = SpeculativeGenerator(
            decoder, Same(), num_draft_tokens=num_draft_tokens, stop=MaxNewTokens(9)
        )([3, 4], streamer=guide)

        assert result.sequences[0] == guide.tokens
        assert 1 == guide.ended

    def test_events_tell_the_same(self, model: Any) -> None:
        """Theirs beside one of ours, of one generation."""
        guide, events = Guide(), Recorder()
        result = ours(model)(list(self.PROMPT), streamer=FanOut(guide, events))

        assert result.sequences[0] == guide.tokens
        assert result.ids[0] == [token for event in events.events for token in event.ids]
        assert all(isinstance(event, Event) for event in events.told[1:-1])
