"""Chats as prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from .validation import check_unicode


def is_chat(prompt: Any) -> bool:
    """Whether *prompt* is a list of messages: mappings with a role."""
    several = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes)
    return several and bool(prompt) and all(isinstance(part, Mapping) and "role" in part for part in prompt)


def chat_ids(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[int]:
    """The ids of :func:`chat_text`; arguments and errors as there."""
    return template_ids(chat_text(messages, tokenizer), tokenizer)


def chat_text(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> str:
    """
    A chat in the *tokenizer*'s chat template, up to where the assistant's turn begins.

    If the last message is the assistant's, its text is continued, as transformers' pipelines do.

    Args:
        messages: ``{"role": ..., "content": ...}`` each, and what else the template reads.

        tokenizer: A Hugging Face tokenizer with a chat template.

    Raises:
        TypeError: There is no tokenizer.

        ValueError: It has no chat template, or the template refuses the messages.
    """
    require_chat_template(tokenizer)
    continued = messages[-1]["role"] == "assistant"
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=not continued,
            continue_final_message=continued,
        )
    except Exception as error:
        # A template raises what its expressions do.
        empty = [message for message in messages if not {"content", "tool_calls"} & set(message)]
        parts = [message for message in messages if not isinstance(message.get("content", ""), str | None)]
        hint = f" (a message without 'content': {empty[0]!r})" if empty else ""
        if parts and not empty:
            hint = f" (a message whose 'content' is no text: {parts[0]!r:.80})"
        raise ValueError(f"the tokenizer's chat template refuses the messages: {error}{hint}") from error
    return text


def template_ids(text: str, tokenizer: Any) -> list[int]:
    """The ids of *text*, a chat in its template or a part of one."""
    check_unicode(text)
    # The template writes special tokens itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def require_chat_template(tokenizer: Any) -> None:
    """
    Check that *tokenizer* can encode a chat.

    Raises:
        TypeError: There is no tokenizer.

        ValueError: It has no chat template.
    """
    if tokenizer is None:
        raise TypeError(
            "a chat is encoded by a tokenizer (pass tokenizer= to the generator): got messages and none"
        )
    # A tokenizer need only decode.
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "a chat must have a tokenizer with a chat template: got messages, and "
            f"{type(tokenizer).__name__}, whose chat_template is None (give it one, or pass text)"
        )
