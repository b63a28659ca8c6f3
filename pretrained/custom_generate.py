"""A function for ``custom_generate`` of transformers' ``generate``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PrefixConstrainedLogitsProcessor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..decoding import Generator, Sample, TransformersModel
from ..decoding.interop.cache_name import CACHE
from ..decoding.optional_protocols import TakesArgmax, stages_of
from ..decoding.protocols import (
    Decoder,
    Drafter,
    DraftLength,
    Processor,
    Sampler,
    StopCondition,
    Verification,
)
from ..decoding.sampling.greedy import Greedy
from ..processors import PrefixFunction, from_transformers
from ..speculation import SpeculativeGenerator
from .draft_fields import drafting_of
from .generate_arguments import (
    asks_for_length,
    check_length,
    custom_processors,
    joined,
    padding_token,
    parts_of,
    rows_of,
    sequences,
    stop_of,
)

_TAKEN = ("attention_mask", "position_ids", CACHE, "logits_to_keep", "use_cache")
"""Model arguments that ``generate`` prepares itself."""

_REFUSED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def decodekit_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any] = (),
    stopping_criteria: Sequence[Any] = (),
    generation_config: Any = None,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    decoder: Decoder | None = None,
    processors: Processor | None = None,
    sampler: Sampler | None = None,
    stop: StopCondition | None = None,
    drafter: Drafter | None = None,
    num_draft_tokens: int | DraftLength | None = None,
    verification: Verification | None = None,
    random_streams: Sequence[int] | None = None,
    exact_width: bool = False,
    **model_kwargs: Any,
) -> Any:
    """
    Let a generator of decodekit do what ``generate`` was asked for.

    ``model.generate(input_ids, custom_generate=decodekit_generate, decoder=decoder, max_new_tokens=64)``.
    Processors, sampler and stop come from the options of ``generate`` and the model's generation config
    (:func:`~decodekit.processors.from_generation_config`), and from ``logits_processor``,
    ``prefix_allowed_tokens_fn`` and ``stopping_criteria``, which see one row at a time, without padding.
    ``prompt_lookup_num_tokens`` makes a :class:`~decodekit.speculation.PromptLookup`. Greedy text is that of
    the model's own ``generate``; sampled text has its distribution, and torch's generator gives the seed.

    ``generate`` keeps ``streamer``, ``assistant_model`` and ``tokenizer`` from custom functions. Bind a
    streamer, and the tokenizer that decodes for it, with ``functools.partial(decodekit_generate,
    streamer=streamer, tokenizer=tokenizer)``; give ``drafter`` in place of an assistant, and
    ``stop=StopStrings(texts, tokenizer)`` in place of ``stop_strings``.

    Args:
        model: The one whose ``generate`` is called.

        input_ids: Prompts ``[rows, columns]``, padded on the left; more than the decoder has rows take turns.

        logits_processor: Prepared by ``generate``, as are *stopping_criteria*, *generation_config* and
            *model_kwargs*.

        stopping_criteria: See *logits_processor*.

        generation_config: See *logits_processor*.

        streamer: Of decodekit, or with ``put`` and ``end``.

        tokenizer: Decodes the text for a streamer of decodekit.

        decoder: Made from *model*. May be left out where *model* is a
            :class:`~decodekit.decoding.TransformersModel`.

        processors: Beside the config's, where transformers puts those that ``generate`` is given: before
            temperature and filters.

        sampler: In place of the config's: ``Greedy()`` or ``Sample()``.

        stop: Beside the maximum length that ``generate`` was asked for, and in place of its default of 20 new
            tokens.

        drafter: For speculation.

        num_draft_tokens: See :class:`~decodekit.speculation.SpeculativeGenerator`.

        verification: See :class:`~decodekit.speculation.SpeculativeGenerator`.

        random_streams: Of the rows; 0, 1, 2, ... if not given.

        exact_width: See :class:`~decodekit.decoding.Generator`.

        **model_kwargs: See *logits_processor*.

    Returns:
        ``[rows, columns]`` int64, shorter rows padded with ``pad_token_id``, or else the first end of
        sequence; a ``GenerateDecoderOnlyOutput`` of them with ``return_dict_in_generate``.

    Raises:
        TypeError: There is no decoder, or a part is of another type.

        ValueError: An option cannot be mapped, or a part does not fit.
    """
    config = generation_config
    decoder = _decoder(model, decoder)
    _check(config, model_kwargs)
    rows, columns = rows_of(input_ids, model_kwargs.get("attention_mask")), input_ids.shape[1]
    limited = stop is None or asks_for_length(config, columns)
    if limited:
        check_length(rows, config.max_length - columns, decoder.shape.max_length)
    if sampler is None:
        # The caller's seed governs this one.
        sampler = Sample(int(torch.randint(2**62, ()))) if config.do_sample else Greedy()
    greedy = isinstance(sampler, TakesArgmax) and sampler.takes_argmax
    custom = custom_processors(model, config, logits_processor, input_ids, model_kwargs)
    added: list[Any] = [*map(_as_ours, custom), *stages_of(processors)]
    options: dict[str, Any] = {
        "processors": joined(parts_of(config, columns, not greedy), added),
        "sampler": sampler,
        "stop": stop_of(stopping_criteria, columns, stop, limited),
        "exact_width": exact_width,
        "tokenizer": tokenizer,
        # Where a row ends is said by the criteria.
        "end_of_sequence": None,
    }
    given = {"drafter": drafter, "num_draft_tokens": num_draft_tokens, "verification": verification}
    speculation = drafting_of(config, {name: part for name, part in given.items() if part is not None})
    kind: Any = SpeculativeGenerator if "drafter" in speculation else Generator
    generation = kind(decoder, **options, **speculation)(rows, random_streams, streamer)
    result: Any = sequences(input_ids, generation.ids, padding_token(config))
    return GenerateDecoderOnlyOutput(sequences=result) if config.return_dict_in_generate else result


def _as_ours(processor: Any) -> Processor:
    """A processor that transformers has made, as one of ours."""
    if type(processor) is not PrefixConstrainedLogitsProcessor:
        return from_transformers(processor)
    # Wrapped, it would take each row for that of the first prompt.
    function, each = processor._prefix_allowed_tokens_fn, processor._num_beams

    def allowed(row: int, ids: Tensor) -> Any:
        found = function(row // each, ids)
        if len(found) == 0:
            raise ValueError(
                f"'prefix_allowed_tokens_fn' must return tokens: got none for prompt {row // each}"
            )
        return found

    return PrefixFunction(allowed)


def _decoder(model: Any, decoder: Decoder | None) -> Decoder:
    if decoder is not None:
        return decoder
    if isinstance(model, TransformersModel):
        own: Decoder = model.decoder
        return own
    raise TypeError(
        "generate(custom_generate=decodekit_generate) needs decoder=compile_decoder(model, ...), made once: "
        f"got none, with a {type(model).__name__}"
    )


def _check(config: Any, model_kwargs: dict[str, Any]) -> None:
    fields = vars(config)
    for name in _REFUSED:
        if fields.get(name):
            raise ValueError(
                f"'{name}' must be False with decodekit_generate: got True. TransformersModel.generate() "
                "gives scores and logits, Generator(decoder)(prompts, logprobs=Logprobs()) log-probabilities"
            )
    for name, value in model_kwargs.items():
        if value is not None and name not in _TAKEN:
            raise ValueError(f"decodekit_generate takes no model argument '{name}': got {value!r:.80}")
    cache = model_kwargs.get(CACHE)
    if cache is not None and cache.get_seq_length():
        raise ValueError(f"'{CACHE}' must be left out: the decoder keeps what it was fed. Give whole prompts")
