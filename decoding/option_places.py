"""Options of other toolkits' ``generate()``, and the parts that take their place here."""

import functools
from collections.abc import Iterable
from inspect import signature
from typing import Any, TypeVar

AnyClass = TypeVar("AnyClass", bound=type)

_TEMPLATE = (
    "prompts=tokenizer.apply_chat_template(messages, ..., add_generation_prompt=True, return_dict=True)"
)

_PLACES = {
    "max_new_tokens": "stop=MaxNewTokens(...)",
    "max_tokens": "stop=MaxNewTokens(...)",
    "max_time": "stop=MaxNewTokens(...) | MaxTime(...)",
    "min_new_tokens": "processors=MinNewTokens(...)",
    "stop_strings": "stop=MaxNewTokens(...) | StopStrings(..., tokenizer)",
    "eos_token_id": "end_of_sequence=...",
    "temperature": "processors=Temperature(...), sampler=Sample(seed=...)",
    "top_k": "processors=TopK(...), sampler=Sample(seed=...)",
    "top_p": "processors=TopP(...), sampler=Sample(seed=...)",
    "min_p": "processors=MinP(...), sampler=Sample(seed=...)",
    "repetition_penalty": "processors=RepetitionPenalty(...)",
    "no_repeat_ngram_size": "processors=NoRepeatNgram(...)",
    "do_sample": "sampler=Sample(seed=...) or Greedy()",
    "seed": "sampler=Sample(seed=...)",
    "num_draft_tokens": "drafter=..., num_draft_tokens=...",
    **dict.fromkeys(
        ("tools", "documents", "enable_thinking", "chat_template", "chat_template_kwargs"), _TEMPLATE
    ),
    "num_beams": "no beams: BeamSearch(decoder, ...) does",
}
"""By option: arguments of a generator."""


def place_of(option: str) -> str:
    """
    The end of a message that names what replaces *option*; empty if it is not known.

    >>> place_of("seed")
    '; a Generator takes sampler=Sample(seed=...)'
    """
    place = _PLACES.get(option)
    return "" if place is None else f"; a Generator takes {place}"


def refuse_options(given: Iterable[str], known: str, of: str = "a call") -> None:
    """
    Raise for options that there are not.

    Args:
        given: Their names.

        known: The options that there are, for the message.

        of: What takes them, for the message.

    Raises:
        TypeError: There are any.
    """
    option = next(iter(given), None)
    if option is not None:
        raise TypeError(f"{of} must have no other options than {known}: got '{option}'{place_of(option)}")


def with_named_places(cls: AnyClass) -> AnyClass:
    """
    Class decorator: let the constructor name the parts that take the place of options that it does not have.

    A constructor then raises ``TypeError`` as :func:`refuse_options` does.
    """
    construct: Any = cls.__init__  # type: ignore[misc]  # of the class itself
    options = [name for name in signature(construct).parameters if name != "self"]

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807 (is one)
        unknown = [name for name in given if name not in options]
        refuse_options(unknown, ", ".join(options), of=f"a {cls.__name__}")
        construct(self, *args, **given)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls
