"""The tokenizer of a model that chats."""

from typing import Any

from ..neuron_backend.models.model_source import check_model
from ..neuron_backend.models.tokenizer_source import load_tokenizer


def load_chat_tokenizer(model: str, saved: bool) -> Any:
    """
    The tokenizer of *model*, before a decoder is compiled or loaded.

    Args:
        model: A folder, a hub id, a GGUF file or a saved decoder.

        saved: Whether it is the last.

    Raises:
        ValueError: It has no tokenizer, or one without a chat template.

        FileNotFoundError: There is no such model.
    """
    if not saved:
        check_model(model)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise ValueError(f"the model must have a tokenizer beside it: got {model}, with none")
    if tokenizer.chat_template is None:
        raise ValueError(f"the tokenizer must have a chat template: got that of {model}, with none")
    return tokenizer
