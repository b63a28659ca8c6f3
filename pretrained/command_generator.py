"""The generator that the flags of ``generate`` and ``chat`` describe."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..decoding import Drafter, Generator, Greedy, MaxNewTokens, Sample, StopStrings
from ..neuron_backend.models.gguf_file import is_gguf
from ..neuron_backend.models.tokenizer_source import load_tokenizer
from ..processors import Chain, MinP, RepetitionPenalty, Temperature, TopK, TopP
from ..speculation import AdaptiveLength, CommonTokens, DraftModel, PromptLookup, SuffixAutomaton
from .command_decoders import PROMPT_WIDTH, DecoderSource, check_source
from .from_files import AUTO, is_saved_decoder, merged_end_tokens, own_generation_config
from .generate_options import scored_width, without_model


def generator_of(
    options: argparse.Namespace,
    batch_size: int = 1,
    check_prompt: Callable[[Any, int | None], object] | None = None,
) -> Generator:
    """
    The generator, its decoder compiled or loaded; everything else is checked before.

    A kept decoder of a GGUF file is loaded first, for its tokenizer.

    Args:
        options: Checked flags.

        batch_size: Rows.

        check_prompt: Given the tokenizer and the positions of a row, None if these are not known; raises a
            ValueError if what is to be encoded cannot be, or is too long. None: nothing is checked.

    Raises:
        ValueError: There is no tokenizer, or a model and a flag, or two models, do not fit.

        FileNotFoundError: There is no such model.
    """
    check_source(options, options.model, "--model")
    draft_model = None if without_model(options.draft) else options.draft
    if draft_model is not None:
        check_source(options, draft_model, "--draft")
    for line in _without_effect(options, draft_model):
        print(f"decodekit: {line}", file=sys.stderr)
    source = _target_source(options, batch_size)
    source.check()
    draft = None if draft_model is None else _draft_source(options, source.rows)
    if draft is not None:
        draft.check()
        _check_vocabularies(source, draft)
    # Reading a GGUF file takes seconds; the folder of a kept decoder has the same tokenizer.
    kept = source.load() if is_gguf(options.model) else None
    tokenizer = None if kept is None else kept.tokenizer
    if tokenizer is None:
        tokenizer = load_tokenizer(options.model)
    if tokenizer is None:
        raise ValueError(f"--model must have a tokenizer: got {options.model}, without")
    if check_prompt is not None:
        check_prompt(tokenizer, source.positions)
    parts = _parts(options, tokenizer)
    # Of a GGUF file it is made with the model.
    late = is_gguf(options.model)
    config = None if late else own_generation_config(options.model)
    target = source.load_or_compile(tokenizer) if kept is None else kept
    config = target.generation_config if late else config
    parts["end_of_sequence"] = _ends_of_sequence(config, tokenizer)
    if options.draft is None:
        return Generator(target, **parts)
    most = min(scored_width(options), target.shape.scored_width) - 1
    return Generator(
        target,
        drafter=_lookup(options.draft) if draft is None else _model_drafter(draft, tokenizer, target),
        num_draft_tokens=options.num_draft_tokens or AdaptiveLength(most),
        **parts,
    )


def _check_vocabularies(source: DecoderSource, draft: DecoderSource) -> None:
    """Refuse a draft model whose ids mean nothing to the target, before both are compiled."""
    own, other = source.vocab_size, draft.vocab_size
    if own is None or other is None or own == other or is_gguf(draft.source):
        return
    if load_tokenizer(draft.source) is None:
        raise ValueError(
            f"--draft must have a tokenizer, or the vocabulary of --model, {own} ids: got {draft.source}, "
            f"without a tokenizer and with {other} ids"
        )


def _without_effect(options: argparse.Namespace, draft_model: str | None) -> Iterator[str]:
    """A line about flags that change nothing."""
    if options.temp == 0 and (options.top_k, options.top_p, options.min_p) != (0, 1.0, 0.0):
        yield "--top-k, --top-p and --min-p change nothing at --temp 0"
    models = [options.model] if draft_model is None else [options.model, draft_model]
    if options.cache is not None and all(map(is_saved_decoder, models)):
        yield "--cache changes nothing for saved decoders"
    elif options.cache is not None and options.target == "eager":
        yield "--cache changes nothing at --target eager, which compiles nothing"


def _target_source(options: argparse.Namespace, batch_size: int) -> DecoderSource:
    columns = scored_width(options)
    widths = options.widths or verification_widths(columns, adaptive=options.num_draft_tokens is None)
    if options.draft is not None and options.num_draft_tokens is None and is_saved_decoder(options.model):
        # As many draft tokens as it can verify.
        columns = 2
    return DecoderSource(
        options=options,
        source=options.model,
        flag="--model",
        widths=widths,
        scored_width=columns,
        batch_size=batch_size,
    )


def verification_widths(columns: int, adaptive: bool) -> list[int]:
    """
    Widths for drafts of up to *columns* - 1 tokens, and for prompts.

    >>> verification_widths(9, adaptive=True), verification_widths(5, adaptive=False)
    ([1, 5, 9, 64], [1, 5, 64])
    """
    between = {(columns + 1) // 2} if adaptive else set()
    return sorted({1, columns, PROMPT_WIDTH, *between})


def _parts(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    stop: Any = MaxNewTokens(options.max_tokens)
    if options.stop:
        stop = StopStrings(options.stop, tokenizer) | stop
    return {
        "processors": Chain(_processors(options)),
        "sampler": Greedy() if options.temp == 0 else Sample(seed=options.seed),
        "stop": stop,
        "tokenizer": tokenizer,
    }


def _processors(options: argparse.Namespace) -> tuple[Any, ...]:
    """Those that are on."""
    filters: tuple[Any, ...] = ()
    if options.temp != 0:
        filters = (
            *([Temperature(options.temp)] if options.temp != 1 else []),
            *([TopK(options.top_k)] if options.top_k else []),
            *([TopP(options.top_p)] if options.top_p != 1 else []),
            *([MinP(options.min_p)] if options.min_p else []),
        )
    penalty = options.repetition_penalty
    return (*([RepetitionPenalty(penalty)] if penalty != 1 else []), *filters)


def _draft_source(options: argparse.Namespace, batch_size: int) -> DecoderSource:
    return DecoderSource(
        options=options,
        source=options.draft,
        flag="--draft",
        # After a fully accepted draft the draft model lacks two tokens.
        widths=(1, 2, PROMPT_WIDTH),
        batch_size=batch_size,
    )


def _lookup(name: str) -> Drafter:
    return PromptLookup() if name == "lookup" else SuffixAutomaton()


def _model_drafter(draft: DecoderSource, tokenizer: Any, target: Any) -> Drafter:
    """A draft model; with other ids than the target's it drafts the tokens that both have."""
    decoder, size = draft.load_or_compile(), target.shape.vocab_size
    own = decoder.tokenizer
    if own is None or (decoder.shape.vocab_size == size and _agree(own.get_vocab(), tokenizer.get_vocab())):
        return DraftModel(decoder)
    draft.say("decodekit: --draft has another vocabulary than --model: it drafts the tokens that both have")
    return CommonTokens(decoder, own, tokenizer, size)


def _agree(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether two vocabularies have the same ids for the tokens in common, and some in common."""
    common = one.keys() & other.keys()
    return bool(common) and all(one[token] == other[token] for token in common)


def _ends_of_sequence(config: Any, tokenizer: Any) -> Any:
    """End-of-sequence ids of the tokenizer and of the generation config, if there is one."""
    return merged_end_tokens(None if config is None else config.eos_token_id, tokenizer.eos_token_id) or AUTO
