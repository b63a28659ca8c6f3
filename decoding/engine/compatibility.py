"""Checks that the parts of a generation fit together."""

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from attrs import validators

from ..cache.slots import feeder_of
from ..forward_checks import refuse_foreign, require_decoder
from ..optional_protocols import (
    AdvisesWidth,
    AnyDecoder,
    ChecksTarget,
    DraftsWhile,
    EndsDrafts,
    MeasuresGap,
    OffersFeeder,
    PreparesLength,
    RanksTokens,
    ReadsText,
    compares_scores,
    is_stateful,
    takes_trees,
    tree_nodes,
)
from ..protocols import DecoderShape, Drafter, DraftLength, Finish, StopCondition, Verification
from ..stopping.composition import how_to_wrap, parts
from ..validation import a_whole_number, is_whole


def a_draft_length(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Check that a parameter is a whole number >= 0 or a :class:`~..protocols.DraftLength`."""
    if isinstance(value, type):
        raise TypeError(f"'{attribute.name}' must be an instance: got the class {value.__name__}")
    if isinstance(value, DraftLength):
        if not is_whole(value.most) or value.most < 0:
            raise ValueError(f"'{attribute.name}' must say a whole number >= 0 at most: got {value.most!r}")
        return
    a_whole_number(instance, attribute, value)
    validators.ge(0)(instance, attribute, value)


_SUCH_AS = {
    "processors": ", such as Temperature(0.7) | TopP(0.9)",
    "sampler": ", such as Greedy() or Sample()",
    "stop": ", such as MaxNewTokens(64) | StopStrings(texts, tokenizer)",
}
"""Examples, for a number or a name in the place of a part."""


def check_parts(
    processors: object, sampler: object, stop: object, verification: object, drafter: object
) -> None:
    """
    Check the types of the parts.

    Raises:
        TypeError: One is a class, cannot be called, or belongs in another place.
    """
    called = {"processors": processors, "sampler": sampler, "stop": stop, "verification": verification}
    for name, part in {**called, "drafter": drafter}.items():
        require_instance(name, part)
    for name, part in called.items():
        able = callable(part) or (name == "sampler" and is_stateful(part))
        if not able and not (name == "processors" and part is None):
            hint = " (join several with |)" if isinstance(part, list | tuple) else _SUCH_AS.get(name, "")
            raise TypeError(f"'{name}' must be callable{hint}: got {part!r}")
    refuse_foreign(processors)
    if isinstance(processors, StopCondition):
        raise TypeError(f"'processors' must be processors, not a stop condition: got {processors!r}")
    if not isinstance(stop, StopCondition):
        raise TypeError(f"'stop' must be a stop condition, with finishes{how_to_wrap(stop)}: got {stop!r}")
    finishes = stop.finishes
    if not isinstance(finishes, Sequence) or not all(isinstance(each, Finish) for each in finishes):
        raise TypeError(f"'stop' must have finishes, a sequence of Finish: got {finishes!r} of {stop!r}")


def check_decoder(decoder: object) -> None:
    """
    Check the type of a decoder.

    Raises:
        TypeError: It is a class, or neither a decoder nor something that offers a feeder.
    """
    require_instance("decoder", decoder)
    if not (isinstance(decoder, OffersFeeder) and isinstance(decoder.shape, DecoderShape)):
        require_decoder(decoder)


def require_instance(name: str, part: object) -> None:
    """
    Refuse a class in place of an object of it.

    Raises:
        TypeError: *part* is a class.
    """
    if isinstance(part, type):
        raise TypeError(f"'{name}' must be an instance: got the class {part.__name__}")


def check_text(stop: StopCondition, tokenizer: Any, skip_special_tokens: bool, echo_prompt: bool) -> None:
    """
    Refuse conditions that decode the ids differently from the output, and echo without a tokenizer.

    Raises:
        ValueError: A condition decodes differently, or an echo has no tokenizer.
    """
    # A match in one decoding of the ids has no defined place in the other.
    for part in parts(stop):
        alike = not isinstance(part, ReadsText) or part.skip_special_tokens == skip_special_tokens
        if tokenizer is not None and not alike:
            raise ValueError(
                f"'skip_special_tokens' must be the same for the text and for {part!r}: "
                f"got {skip_special_tokens}"
            )
    if echo_prompt and tokenizer is None:
        raise ValueError("'tokenizer' must be given where 'echo_prompt' is True: got None")


def check_gap(sampler: object, verification: Verification) -> None:
    """
    Check that gaps can be recorded.

    Raises:
        TypeError: The sampler measures none.

        ValueError: The verification does not keep the sampler's own tokens.
    """
    if not isinstance(sampler, MeasuresGap):
        raise TypeError(
            f"'sampler' must have gap(logits, history) where 'record_gap' is True: got {sampler!r}"
        )
    if compares_scores(verification):
        raise ValueError(
            "'record_gap' must be False where choices are not the sampler's own: "
            f"got True with {verification!r}"
        )


def check_drafter(
    drafter: Any,
    length: int | DraftLength,
    verification: Any,
    decoder: AnyDecoder,
    sampler: Any,
    exact_width: bool,
) -> None:
    """
    Check the parts of speculation, and let the drafter and the draft *length* examine the target.

    Raises:
        TypeError: There is no drafter, or no verification.

        ValueError: A part does not fit another.
    """
    if not isinstance(drafter, Drafter):
        raise TypeError(f"'drafter' must have propose(history, budget, sample): got {drafter!r}")
    if not isinstance(verification, Verification):
        raise TypeError(f"'verification' must have drafting(sampler, start): got {verification!r}")
    if is_stateful(sampler):
        raise ValueError(f"{sampler!r} depends on past logits: it cannot run under speculation")
    verification.drafting(sampler, torch.zeros(1, dtype=torch.int64))
    shape = decoder.shape
    if (nodes := tree_nodes(drafter)) is not None:
        _check_trees(nodes, verification, decoder, sampler, exact_width)
    else:
        most = length if isinstance(length, int) else length.most
        if most + 1 > shape.scored_width:
            raise ValueError(
                f"'num_draft_tokens' must be at most {shape.scored_width - 1}, one less than the columns "
                f"that the decoder scores: got {most}. {how_to_score(decoder, most + 1)}"
            )
    # A tree drafter may inherit from one that samples token by token.
    by_token = isinstance(drafter, DraftsWhile) and tree_nodes(drafter) is None
    if isinstance(length, EndsDrafts) and not by_token:
        raise ValueError(
            f"'num_draft_tokens' {length!r} needs a drafter that samples token by token, with "
            f"propose_while(), such as DraftModel: got {drafter!r}"
        )
    if isinstance(drafter, ChecksTarget):
        drafter.check_target(shape)
    if isinstance(length, PreparesLength):
        length.prepare(decoder, exact_width)


def _check_trees(
    nodes: int, verification: object, decoder: AnyDecoder, sampler: object, exact_width: bool
) -> None:
    widths = feeder_of(decoder).tree_widths
    if max(widths, default=0) < nodes + 1:
        raise ValueError(
            f"'decoder' must score trees of {nodes} draft tokens and the token before them: it has the tree "
            f"widths {widths}. Compile it with tree_widths=({nodes + 1},), or a few more, which lets it "
            "catch up in the same forward"
        )
    if not takes_trees(verification):
        raise ValueError(f"'verification' must take trees, as ExactMatch does: got {verification!r}")
    if not isinstance(sampler, RanksTokens):
        raise ValueError(f"'sampler' must have top_choices() for a tree's children: got {sampler!r}")
    if exact_width:
        raise ValueError("'exact_width' must be False with trees, which have programs of their own: got True")


def how_to_score(decoder: AnyDecoder, columns: int) -> str:
    """Advice on how to compile the decoder; adapters name their toolkit's own setting."""
    if isinstance(decoder, AdvisesWidth):
        return decoder.advise_width(columns)
    return f"Compile it with {columns} among its widths"
