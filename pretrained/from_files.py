"""A generator's arguments from a model's files."""

import copy
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..decoding.engine.no_effect import NoEffectWarning
from ..decoding.engine.parts import DEFAULT_NEW_TOKENS, Parts
from ..decoding.option_places import place_of
from ..decoding.optional_protocols import TakesArgmax, tree_nodes
from ..decoding.protocols import DraftLength
from ..decoding.validation import as_several, is_whole
from ..neuron_backend import compile_decoder, load_decoder
from ..neuron_backend.artifacts.manifest import NAME
from ..neuron_backend.kv_cache.shapes import DEFAULT_WIDTHS, default_scored_width
from ..neuron_backend.models.gguf_file import is_gguf
from ..neuron_backend.models.model_source import check_model, is_hub_id, is_on_hub
from ..neuron_backend.models.tokenizer_source import load_tokenizer
from ..processors import from_generation_config
from .draft_fields import with_draft_length
from .kept_decoders import compile_and_keep, kept_folder, load_kept, with_target

AUTO = "auto"

_OF_THE_CHAIN = {"processors", "sampler"}
"""Options of both the generator and the compiler; here they are the generator's."""

_OF_THE_HUB = {"revision", "token"}
"""Options of ``load_decoder`` that say which files a repository has."""


def generator_arguments(
    kind: type[Any],
    model: Any,
    *,
    generation_config: Any = AUTO,
    cache: bool | str | os.PathLike[str] = False,
    **options: Any,
) -> dict[str, Any]:
    """
    Keyword arguments for *kind*, decoder included, as its ``from_pretrained`` takes them.

    Everything is checked before the decoder is compiled, or loaded unless it is a kept one.

    Args:
        kind: ``Generator`` or a subclass.

        model: A model, the path or hub id of one, a GGUF file, or a saved decoder.

        generation_config: ``"auto"``, a ``transformers.GenerationConfig``, or None.

        cache: Whether the compiled decoder is kept (:mod:`.kept_decoders`), or the folder.

        **options: Parts of *kind*, and options of ``compile_decoder``, or of ``load_decoder`` if *model* is
            a saved decoder.

    Raises:
        TypeError: An option is unknown, or one is missing.

        ValueError: An argument is invalid.

        FileNotFoundError: There is no such model.
    """
    of_hub = {name: options[name] for name in _OF_THE_HUB & set(options)}
    saved = is_saved_decoder(model, **of_hub)
    makes = load_decoder if saved else compile_decoder
    of_decoder = set(list(inspect.signature(makes).parameters)[1:]) - _OF_THE_CHAIN
    fields = {field.name: field for field in attrs.fields(kind) if field.init and field.name != "decoder"}
    _check_names(kind, options, of_decoder, fields, "a saved decoder" if saved else "a model")
    if isinstance(generation_config, str | Mapping) and generation_config != AUTO:
        raise ValueError(
            f"'generation_config' must be {AUTO!r}, a transformers.GenerationConfig or None: "
            f"got {generation_config!r}"
        )
    if not saved:
        check_model(model)
    of_this = {name: value for name, value in options.items() if name in of_decoder}
    if isinstance(of_this.get("widths"), Iterator):
        of_this["widths"] = tuple(of_this["widths"])
    kept = None
    if _keeps(cache, model, saved):
        of_this = with_target(of_this)
        kept = kept_folder(model, of_this, None if isinstance(cache, bool) else cache)
    loaded = None if kept is None else load_kept(kept, of_this)
    # Reading a GGUF file takes seconds; a kept decoder's folder says the same.
    sooner = loaded if is_gguf(model) else None
    parts = {name: value for name, value in options.items() if name in fields}
    if parts.get("tokenizer") is None:
        parts["tokenizer"] = None if sooner is None else sooner.tokenizer
    of_model = None
    if parts["tokenizer"] is None and isinstance(model, str | os.PathLike):
        parts["tokenizer"] = of_model = load_tokenizer(model, **of_hub)
    own, files = isinstance(generation_config, str), model if sooner is None else kept
    # Of a GGUF file that is compiled now it is taken from the model.
    late = own and is_gguf(files)
    config = None if late else own_generation_config(files, **of_hub) if own else generation_config
    _check_parts(parts)
    parts = configured(parts, config)
    _check_parts(parts)
    if not saved:
        _check_draft_width(parts, fields["num_draft_tokens"].default, of_this)
    if kept is None:
        decoder: Any = makes(model, **of_this)
    else:
        decoder = compile_and_keep(model, of_this, kept, tokenizer=of_model) if loaded is None else loaded
    if late:
        parts = configured(parts, decoder.generation_config)
    return {"decoder": decoder, **parts}


def _keeps(cache: Any, model: Any, saved: bool) -> bool:
    """Whether *cache* says to keep the decoder."""
    if not isinstance(cache, bool | str | os.PathLike):
        raise TypeError(f"'cache' must be True, False or a folder: got {cache!r}")
    if cache is not False and (saved or not isinstance(model, str | os.PathLike)):
        raise TypeError(
            "'cache' keeps what is compiled from a model's files: got "
            + (f"{model}, a saved decoder" if saved else "a loaded model; give its path, or save() it")
        )
    return cache is not False


def is_saved_decoder(model: object, **of_hub: Any) -> bool:
    """Whether *model* is the folder, or the hub repository *of_hub*'s revision, of a saved decoder."""
    if not isinstance(model, str | os.PathLike):
        return False
    folder = Path(model)
    if folder.exists() or not is_hub_id(str(model)):
        return (folder / NAME).is_file()
    return is_on_hub(str(model), NAME, **of_hub)


def configured(parts: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """
    *parts* with what a generation config adds: processors, sampler, stop and end of sequence.

    Parts that are given take precedence; if chain, sampler and stop are, fields that cannot be mapped are
    ignored. A chain that is not given is read for the sampler that is: greedy decoding has no
    temperature and no filters. A config without a limit of its own gets the generator's default. The length
    of a given drafter's drafts may come from the config too (:func:`~.draft_fields.with_draft_length`).

    Args:
        parts: Parts of a generator by name, with a tokenizer or None.

        config: A ``transformers.GenerationConfig``; None adds nothing.

    Raises:
        ValueError: The config has a field that cannot be mapped.
    """
    if config is None:
        return dict(parts)
    config, tokenizer, sampler = copy.copy(config), parts["tokenizer"], parts.get("sampler")
    if sampler is not None:
        config.do_sample = not (isinstance(sampler, TakesArgmax) and sampler.takes_argmax)
    default = type(config)()
    if config.max_new_tokens is None and config.max_length in (None, default.max_length):
        config.max_new_tokens = DEFAULT_NEW_TOKENS
    ends = parts.get("end_of_sequence", AUTO)
    if isinstance(ends, str):
        own = None if tokenizer is None else tokenizer.eos_token_id
        ends = merged_end_tokens(config.eos_token_id, own) or None
    config.eos_token_id = None if ends is None else list(as_several(ends))
    others = {"start_of_sequence": _start(config, parts), "end_of_sequence": ends}
    given = {**with_draft_length(config, parts), **others}
    if {"processors", "sampler", "stop"} <= set(parts):
        return given
    # A stop that is given leaves nothing to be read from the config.
    if "stop" in parts:
        config.stop_strings = None
    try:
        found = from_generation_config(config, seed=None, tokenizer=tokenizer)
    except ValueError as error:
        raise ValueError(f"{error}. Here, pass generation_config=None, or a changed one") from error
    return {**found.as_arguments(), **given}


def _start(config: Any, parts: Mapping[str, Any]) -> Any:
    """The start of sequence that is given, or the config's, or ``"auto"`` for the tokenizer's."""
    given = parts.get("start_of_sequence", AUTO)
    if not isinstance(given, str) or given != AUTO:
        return given
    known = vars(config)
    for own in (known.get("bos_token_id"), known.get("decoder_start_token_id")):
        if own is not None:
            return as_several(own)[0]
    return AUTO


def _check_names(
    kind: type, options: Mapping[str, Any], decoder: set[str], fields: Mapping[str, Any], source: str
) -> None:
    unknown = sorted(set(options) - decoder - set(fields))
    if unknown:
        why = place_of(unknown[0])
        if unknown[0] == "threads":
            why = ", which is the decoder's: set generator.decoder.threads"
        elif unknown[0] in inspect.signature(compile_decoder).parameters:
            why = ", which is fixed when a decoder is compiled"
        raise TypeError(
            f"from_pretrained() of {source} has no option '{unknown[0]}'{why}: it takes cache, "
            f"generation_config, {', '.join(sorted(fields))}; for the decoder {', '.join(sorted(decoder))}"
        )
    required = [name for name, field in fields.items() if field.default is attrs.NOTHING]
    missing = [name for name in required if name not in options]
    if missing:
        raise TypeError(f"{kind.__name__}.from_pretrained() needs '{missing[0]}'")


def _check_parts(parts: Mapping[str, Any]) -> None:
    with warnings.catch_warnings():
        # The generator itself will warn.
        warnings.simplefilter("ignore", NoEffectWarning)
        Parts(**{name: value for name, value in parts.items() if name in attrs.fields_dict(Parts)})


def _check_draft_width(parts: Mapping[str, Any], default: Any, of_decoder: Mapping[str, Any]) -> None:
    """Refuse a draft that the decoder will not score, before it is compiled."""
    drafter, length = parts.get("drafter"), parts.get("num_draft_tokens", default)
    if drafter is None or tree_nodes(drafter) is not None:
        return
    # A default that looks at the decoder has one draft token at least.
    most = length if is_whole(length) else length.most if isinstance(length, DraftLength) else 1
    given, scored = of_decoder.get("widths"), of_decoder.get("scored_width")
    widths = DEFAULT_WIDTHS if given is None else as_several(given)
    if not widths or not all(map(is_whole, widths)) or not is_whole(scored or 1):
        # For the compiler to refuse.
        return
    scored = scored or default_scored_width(widths)
    if most + 1 > scored:
        raise ValueError(
            f"'num_draft_tokens' must be at most {scored - 1}, one less than the columns that the decoder "
            f"scores with widths {widths}: got {most}. Give {most + 1} among the widths"
        )


def merged_end_tokens(*given: Any) -> list[int]:
    """The end-of-sequence ids that are *given*, each setting an id, several or None."""
    return sorted({end for ends in given if ends is not None for end in as_several(ends)})


def own_generation_config(model: Any, **of_hub: Any) -> Any:
    """The generation config of *model*, or of its folder or repository; None if a loaded model has none."""
    if not isinstance(model, str | os.PathLike):
        return model.generation_config
    path = Path(model)
    name = "generation_config.json"
    has_one = (path / name).is_file() if path.exists() else is_on_hub(str(model), name, **of_hub)
    # Imported here: it takes seconds.
    from transformers import GenerationConfig

    if has_one:
        return GenerationConfig.from_pretrained(str(model), **of_hub)
    # Older models have their settings in the other file, where transformers finds them too.
    return GenerationConfig.from_pretrained(str(model), "config.json", _from_model_config=True, **of_hub)
