"""The generator that the flags of ``generate`` and ``chat`` describe."""

import argparse
from collections.abc import Collection
from typing import Any

from ..decoding import Generator, Greedy, MaxNewTokens, Sample, StopStrings
from ..decoding.validation import as_several
from ..neuron_backend.models.tokenizer_source import load_tokenizer
from ..processors import Chain, MinP, RepetitionPenalty, Temperature, TopK, TopP
from ..speculation import AdaptiveLength, DraftModel, PromptLookup, SuffixAutomaton
from .command_decoders import check_source, decoder_of
from .from_files import AUTO, is_saved_decoder, own_generation_config
from .generate_options import without_model

_MOST = 8
"""Draft tokens per step, unless ``--num-draft-tokens`` says how many."""


def generator_of(options: argparse.Namespace, batch_size: int = 1) -> Generator:
    """
    The generator, its decoder compiled or loaded; everything else is checked before.

    Args:
        options: Checked flags.

        batch_size: Rows.

    Raises:
        ValueError: There is no tokenizer, or a model and a flag do not fit.

        FileNotFoundError: There is no such model.
    """
    check_source(options, options.model, "--model")
    draft_model = None if without_model(options.draft) else options.draft
    if draft_model is not None:
        check_source(options, draft_model, "--draft")
    tokenizer = load_tokenizer(options.model)
    if tokenizer is None:
        raise ValueError(f"--model must have a tokenizer: got {options.model}, without")
    parts = _parts(options, tokenizer)
    columns = 1 + (0 if options.draft is None else options.num_draft_tokens or _MOST)
    if options.draft is not None and options.num_draft_tokens is None and is_saved_decoder(options.model):
        # As many as it has, and at least one draft token.
        decoder = decoder_of(
            options, options.model, "--model", widths=(), scored_width=2, batch_size=batch_size
        )
        columns = min(columns, decoder.shape.scored_width)
    else:
        widths = {1, columns} if options.num_draft_tokens else {1, (columns + 1) // 2, columns}
        decoder = decoder_of(
            options,
            options.model,
            "--model",
            widths=widths,
            scored_width=columns,
            batch_size=batch_size,
        )
    if options.draft is None:
        return Generator(decoder, **parts)
    return Generator(
        decoder,
        drafter=_drafter(options, batch_size),
        num_draft_tokens=options.num_draft_tokens or AdaptiveLength(columns - 1),
        **parts,
    )


def _parts(options: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    stop: Any = MaxNewTokens(options.max_tokens)
    if options.stop:
        stop = StopStrings(options.stop, tokenizer) | stop
    return {
        "processors": Chain(_processors(options)),
        "sampler": Greedy() if options.temp == 0 else Sample(seed=options.seed),
        "stop": stop,
        "tokenizer": tokenizer,
        "end_of_sequence": _ends_of_sequence(options.model, tokenizer),
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


def _drafter(options: argparse.Namespace, batch_size: int) -> Any:
    if options.draft == "lookup":
        return PromptLookup()
    if options.draft == "suffix":
        return SuffixAutomaton()
    # After a fully accepted draft the draft model lacks two tokens.
    return DraftModel(decoder_of(options, options.draft, "--draft", widths=(1, 2), batch_size=batch_size))


def _ends_of_sequence(model: str, tokenizer: Any) -> Any:
    """End-of-sequence ids of the tokenizer and of the generation config."""
    config = own_generation_config(model)
    ends = {*_several(None if config is None else config.eos_token_id), *_several(tokenizer.eos_token_id)}
    return sorted(ends) or AUTO


def _several(value: Any) -> Collection[int]:
    return () if value is None else as_several(value)
