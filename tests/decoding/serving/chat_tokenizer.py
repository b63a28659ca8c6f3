"""A small tokenizer with a chat template, whose texts have many encodings."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
MERGES = (("a", "b"), ("c", "d"), ("ab", "cd"), ("e", " "), ("\n", "a"))

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Only adds to the conversation."""

ENDLESS = PLAIN.replace("<|end|>\n", "")
"""The end of an answer is not written."""

TRIMMING = PLAIN.replace("{{ m.content }}", "{{ m.content | trim }}")
"""White space around a message is left out."""

FORGETFUL = PLAIN.replace("{{ m.content }}", "{{ m.content.split('h')[-1] if not loop.last else m.content }}")
"""Of a message that is not the last one, what comes before the last h is left out, as reasoning is."""

REFUSING = PLAIN + "{% if messages[-1].content == 'refused' %}{{ raise_exception('no') }}{% endif %}"


def chat_tokenizer(template: str | None = PLAIN, *, right_strip: bool = False) -> Any:
    """
    Letters a to h, blank, newline, and pairs of them.

    Args:
        template: The chat template.

        right_strip: Whether white space after a special token is no token.
    """
    vocab = [*SPECIAL, *"abcdefgh \n", *("".join(pair) for pair in MERGES)]
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(vocab)}, list(MERGES)))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(token, special=True, rstrip=right_strip) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    tokenizer.chat_template = template
    return tokenizer


VOCAB_SIZE = len(SPECIAL) + 10 + len(MERGES)
