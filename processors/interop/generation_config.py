"""Conversion of ``transformers.GenerationConfig`` to generation parts and back."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor

from ...decoding.protocols import Processor, Sampler, StopCondition
from ...decoding.sampling.greedy import Greedy
from ...decoding.sampling.sample import Sample
from ...decoding.stopping.composition import AnyOf
from ...decoding.stopping.end_of_sequence import EndOfSequence
from ...decoding.stopping.max_length import MaxLength
from ...decoding.stopping.max_new_tokens import MaxNewTokens
from ...decoding.stopping.max_time import MaxTime
from ...decoding.stopping.stop_strings import StopStrings
from ...decoding.validation import as_several, is_iterable
from ..chain import Chain
from ..parameter import options_of
from .generation_fields import METADATA, NO_EFFECT, REFUSED, SAMPLER_AND_STOP, STAGES, OtherFields, StageField

DEFAULT_NEW_TOKENS = 20
"""``generate``'s length limit if the configuration has none."""

DEFAULT_TOP_K = 50
"""Top-k of ``generate(do_sample=True)`` if the configuration has none."""


@attrs.frozen(eq=False)
class GenerationParts:
    """Processors, sampler and stop condition of a generation config."""

    processors: Chain
    """The configured stages, in the order of transformers."""

    sampler: Sampler
    """``Sample`` or ``Greedy``."""

    stop: StopCondition
    """The stop condition."""

    unused: Mapping[str, str]
    """Fields that are set but have no effect on tokens, with the reason."""

    from_defaults: Mapping[str, Any] = attrs.field(factory=dict)
    """Fields that the model's own config gave (``defaults``), because the config does not set them."""

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``Generator(decoder, **parts.as_arguments())``."""
        return {"processors": self.processors, "sampler": self.sampler, "stop": self.stop}


def from_generation_config(
    config: Any,
    *,
    seed: int | None = None,
    tokenizer: Any = None,
    defaults: Any = None,
    ignore: Iterable[str] = (),
) -> GenerationParts:
    """
    Make the parts with which a generator does what ``generate`` does with *config*.

    Each field is mapped, listed in :attr:`GenerationParts.unused` (no effect on tokens), or
    refused by name (:mod:`decodekit.processors.interop.generation_fields`).

    A field that is None, or missing in an older version, has the default of ``generate``: 20 new
    tokens, and with ``do_sample`` a top-k of 50. As there, ``max_new_tokens`` takes precedence over
    ``max_length`` and ``min_new_tokens`` over ``min_length``, and without ``do_sample`` temperature
    and filters are ignored. Differences: prompts have no padding here, so lengths count tokens only;
    a prompt of ``max_length`` or more, an error there, gets one token; ``remove_invalid_values``
    keeps ``-inf``, which becomes the lowest number there; ids to suppress, or to end at, that the
    vocabulary does not have are an error in the first step, and are ignored there; stop strings are searched
    in the new text only, while there one ends the row at its first token if the prompt ends with it or with
    its beginning.

    ``generate`` takes fields that are not set from ``model.generation_config``: the model's own end tokens
    end its rows whatever configuration is given. Here a configuration without ``eos_token_id`` ends at none,
    unless *defaults* are given.

    Args:
        config: A ``transformers.GenerationConfig``, such as ``model.generation_config``.

        seed: Seed of ``Sample``, which is not part of a configuration. None: a fresh one each call.

        tokenizer: Required for ``stop_strings``, which may be or contain special tokens.

        defaults: Another ``GenerationConfig``, which gives each field that *config* does not set, as
            ``model.generation_config`` does in ``generate``; :attr:`GenerationParts.from_defaults` says
            which. None: no others.

        ignore: Names of refused or unknown fields to skip.

    Raises:
        TypeError: *config*, *defaults* or *ignore* is none, or a field has another type.

        ValueError: A field is unsupported or unknown.
    """
    known, inherited = _with_defaults(config, defaults)
    if isinstance(ignore, str) or not is_iterable(ignore) or not all(isinstance(n, str) for n in ignore):
        raise TypeError(f"'ignore' must be names of fields: got {ignore!r}")
    ignored = set(ignore)
    fields = {name: value for name, value in known.items() if name not in ignored}
    # Values up to transformers 4, and None later.
    unset = vars(type(config)())
    _refuse(fields, unset)
    unused = {
        name: reason
        for name, reason in NO_EFFECT.items()
        if fields.get(name) is not None and fields[name] != unset.get(name)
    }
    eos = _token_ids(fields.get("eos_token_id"))
    limit = _limit(fields, unset, unused)
    stages = _stages(fields, OtherFields(eos, limit), unused)
    sampler = Sample(seed) if fields.get("do_sample") else Greedy()
    taken = {name: value for name, value in inherited.items() if name not in ignored}
    return GenerationParts(Chain(stages), sampler, _stop(fields, eos, limit, tokenizer), unused, taken)


def _with_defaults(config: Any, defaults: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The fields, and those of them that *defaults* sets and *config* does not."""
    fields = _fields_of(config)
    if defaults is None:
        return fields, {}
    others, unset = _fields_of(defaults, "defaults"), vars(type(config)())
    own, inherited = (
        {name: value for name, value in each.items() if value is not None and value != unset.get(name)}
        for each in (fields, others)
    )
    taken = {name: value for name, value in inherited.items() if name not in own and name not in METADATA}
    return {**fields, **others, **own}, taken


def _fields_of(config: Any, name: str = "config") -> Mapping[str, Any]:
    try:
        fields = {} if isinstance(config, type) else vars(config)
    except TypeError:  # it has none
        fields = {}
    if not fields:
        raise TypeError(f"'{name}' must be a transformers.GenerationConfig: got {config!r}")
    return fields


def _refuse(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    known = {stage.field for stage in STAGES}.union(SAMPLER_AND_STOP, NO_EFFECT, METADATA, REFUSED)
    for name, (off, reason) in REFUSED.items():
        value = fields.get(name)
        if value not in off and value is not None:
            allowed = " or ".join(repr(each) for each in off)
            raise ValueError(f"'{name}' must be {allowed}: got {value!r}; {reason}")
    for name, value in fields.items():
        if name not in known and value is not None and value != defaults.get(name):
            raise ValueError(
                f"'{name}' is no known field of a generation config: got {value!r}. "
                f"ignore=['{name}'] passes over it"
            )


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return as_several(value)


def _limit(fields: Mapping[str, Any], defaults: Mapping[str, Any], unused: dict[str, str]) -> dict[str, int]:
    new, length = fields.get("max_new_tokens"), fields.get("max_length")
    if length == defaults.get("max_length"):
        length = None
    if new is not None and length is not None:
        unused["max_length"] = "max_new_tokens goes before it"
    if new is None and length is not None:
        return {"max_length": length}
    return {"max_new_tokens": DEFAULT_NEW_TOKENS if new is None else new}


def _stages(fields: Mapping[str, Any], rest: OtherFields, unused: dict[str, str]) -> Iterable[Processor]:
    sampling = bool(fields.get("do_sample"))
    for stage in STAGES:
        value = fields.get(stage.field)
        if value is None and stage.field == "top_k" and sampling:
            value = DEFAULT_TOP_K
        if value is None or not stage.is_on(value):
            continue
        if stage.only_sampling and not sampling:
            unused[stage.field] = "it acts with do_sample only"
        elif stage.field in ("min_length", "min_new_tokens") and not rest.eos:
            unused[stage.field] = "there is no eos_token_id to forbid"
        elif stage.field == "min_length" and fields.get("min_new_tokens") is not None:
            unused[stage.field] = "min_new_tokens goes before it"
        else:
            yield stage.make(value, rest)


def _stop(
    fields: Mapping[str, Any], eos: tuple[int, ...], limit: Mapping[str, int], tokenizer: Any
) -> StopCondition:
    length = limit.get("max_length")
    stop: Any = MaxNewTokens(limit["max_new_tokens"]) if length is None else MaxLength(length)
    if fields.get("max_time") is not None:
        stop = stop | MaxTime(fields["max_time"])
    if fields.get("stop_strings") is not None:
        if tokenizer is None:
            raise ValueError(f"'stop_strings' needs a tokenizer: got {fields['stop_strings']!r} and None")
        stop = StopStrings(fields["stop_strings"], tokenizer, hide=False) | stop
    finish: StopCondition = EndOfSequence(eos) | stop if eos else stop
    return finish


def to_generation_config(
    processors: Processor | None = None, *, sampler: Sampler, stop: StopCondition
) -> Any:
    """
    Make the ``transformers.GenerationConfig`` with which ``generate`` does what these parts do.

    Inverse of :func:`from_generation_config`: ``to_generation_config(**parts.as_arguments())``. The
    seed is lost: ``generate`` draws from torch's global generator. And ``generate`` fills fields that are
    None from ``model.generation_config``: temperature, top-k, top-p, repetition penalty and n-grams are
    never None here; others, such as ``eos_token_id`` or ``min_p``, must not be set there either.

    Args:
        processors: Stages that a configuration can express, in the order of transformers.

        sampler: ``Greedy()`` or ``Sample()``.

        stop: ``MaxNewTokens`` or ``MaxLength``, and any of ``EndOfSequence``, ``MaxTime`` and
            ``StopStrings``, joined with ``|``.

    Raises:
        ValueError: A part, order or option that no field can express.
    """
    from transformers import GenerationConfig

    fields = _sampler_fields(sampler) | _stop_fields(stop)
    rest = OtherFields(
        _token_ids(fields.get("eos_token_id")),
        {name: fields[name] for name in ("max_new_tokens", "max_length") if name in fields},
    )
    if not rest.limit:
        raise ValueError(
            f"'stop' must have MaxNewTokens or MaxLength, for generate has a limit of its own: got {stop!r}"
        )
    # Set, though off: generate takes what is None from the model's own config.
    fields = (_OFF_SAMPLING if fields["do_sample"] else {}) | _OFF | fields
    fields |= _stage_fields(processors, rest, fields["do_sample"])
    return GenerationConfig(**fields)  # type: ignore[no-untyped-call]


_OFF = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
_OFF_SAMPLING = {"temperature": 1.0, "top_p": 1.0}
"""Fields that published configs set, off."""


def _sampler_fields(sampler: Sampler) -> dict[str, Any]:
    if not isinstance(sampler, Greedy | Sample):
        raise ValueError(f"'sampler' must be Greedy() or Sample(): got {sampler!r}")
    # Without a top-k in the chain it must be off, not the default of 50.
    return {"do_sample": True, "top_k": 0} if isinstance(sampler, Sample) else {"do_sample": False}


def _stop_fields(stop: StopCondition) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in _alternatives(stop):
        name, value = _stop_field(part)
        if name in fields:
            raise ValueError(f"'stop' must say '{name}' once: got {stop!r}")
        fields[name] = value
    return fields


def _alternatives(stop: StopCondition) -> Iterator[StopCondition]:
    if isinstance(stop, AnyOf):
        for condition in stop.conditions:
            yield from _alternatives(condition)
    else:
        yield stop


def _stop_field(part: Any) -> tuple[str, Any]:
    if isinstance(part, EndOfSequence) and not part.hide:
        return "eos_token_id", part.ids[0] if len(part.ids) == 1 else list(part.ids)
    if isinstance(part, MaxNewTokens | MaxLength) and len(part.n) == 1:
        return ("max_new_tokens" if isinstance(part, MaxNewTokens) else "max_length"), int(part.n)
    if isinstance(part, MaxTime) and part.since == "call":
        return "max_time", part.seconds
    if isinstance(part, StopStrings) and not part.hide:
        return "stop_strings", list(part.strings)
    raise ValueError(f"'stop' must be what a generation config can say, joined with |: got {part!r}")


def _stage_fields(processors: Processor | None, rest: OtherFields, sampling: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    last = -1
    for processor in Chain(() if processors is None else (processors,)).processors:
        index = next((i for i, stage in enumerate(STAGES) if isinstance(processor, stage.kinds)), None)
        if index is None:
            raise ValueError(f"'processors' must be stages of a generation config: got {processor!r}")
        stage = STAGES[index]
        if index <= last:
            raise ValueError(
                f"'processors' must be in the order of transformers, where '{stage.field}' does not come "
                f"after '{STAGES[last].field}': got {processor!r}"
            )
        if stage.only_sampling and not sampling:
            raise ValueError(f"'processors' of a greedy config have no '{stage.field}': got {processor!r}")
        value = _value(stage, processor, rest)
        # generate refuses an empty list, which is nothing.
        if value or stage.field not in ("sequence_bias", "bad_words_ids"):
            fields[stage.field] = value
        last = index
    if {"min_length", "min_new_tokens"} <= fields.keys():
        raise ValueError(
            "'processors' must have MinLength or MinNewTokens, not both: generate drops 'min_length' beside "
            "'min_new_tokens'"
        )
    return fields


def _value(stage: StageField, processor: Any, rest: OtherFields) -> Any:
    value = stage.value(processor)
    options = options_of(processor)
    # The field must reproduce the processor, options included.
    if not any(isinstance(option, Tensor) for option in options.values()) and options == options_of(
        stage.make(value, rest)
    ):
        return value
    raise ValueError(
        f"'processors' must have no options that '{stage.field}' cannot say, no parameters one per row, and "
        f"the stop's tokens and limits: got {processor!r}"
    )
