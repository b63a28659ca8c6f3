"""Replacement of a prompt's last token by a longer one, as transformers' ``token_healing``."""

from collections.abc import Sequence

import torch

from ..generator import Generator
from ..validation import is_iterable

_EXTENSION, _ITSELF = 10.0, 1.0
"""Added to the logits of tokens that extend the last one, itself included, and to its own."""


def heal_last_tokens(generator: Generator, texts: Sequence[str]) -> list[list[int]]:
    """
    Prompts whose last token is replaced by the likeliest token that begins with it.

    This is the rule of ``generate(token_healing=True)`` in transformers 5.24: white space at the ends of a
    text is removed; the logits of the tokens whose spelling begins with the last token's get a bias of 10,
    and 1 more for the last token itself, so that it stays when others are hardly likelier; the largest of
    all logits is taken. Where no other token begins with it, a prompt stays as it is. Neither processors nor
    sampler of the generator take part. One forward for each prompt.

    There a last token that begins with a space, or is spelled otherwise than it is decoded, is an error
    or not found; here it is replaced like others. There a beginning of sequence becomes padding; here
    it stays, and is left out in the choice of the token only, as there.

    :class:`~.token_healing.TokenHealing` is strict instead, and may remove several tokens.

    Args:
        generator: It has a tokenizer.

        texts: The prompts.

    Returns:
        Ids of each prompt, as the generator takes them.

    Raises:
        TypeError: *texts* are not several texts.

        ValueError: The generator has no tokenizer, or a prompt that it refuses.
    """
    if isinstance(texts, str) or not is_iterable(texts) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"'texts' must be several texts: got {texts!r:.80}")
    tokenizer = generator.tokenizer
    if tokenizer is None:
        raise ValueError("'generator' must have a tokenizer: got None")
    names = tokenizer.get_vocab()
    return [_healed(generator, list(tokenizer(text.strip())["input_ids"]), names) for text in texts]


def _healed(generator: Generator, ids: list[int], names: dict[str, int]) -> list[int]:
    tokenizer, bos = generator.tokenizer, generator.tokenizer.bos_token_id
    text = [token for token in ids if token != bos]
    if not text or len(ids) == 1:
        return ids
    last = tokenizer.convert_ids_to_tokens(text[-1])
    extensions = [index for name, index in names.items() if name.startswith(last)]
    if len(extensions) <= 1:
        return ids
    # The only token after a beginning of sequence is chosen anew after that.
    context = text[:-1] or ids[:-1]
    logits = generator.logits([context])[0][0, 0]
    bias = torch.zeros_like(logits)
    bias[torch.tensor([index for index in extensions if index < len(logits)])] = _EXTENSION
    bias[text[-1]] += _ITSELF
    return [*ids[: len(ids) - 1], int((logits + bias).argmax())]
