"""The error for models that this backend cannot serve."""

from collections.abc import Iterable


class UnsupportedArchitecture(ValueError):  # noqa: N818 (it reads as a sentence where it is raised)
    """
    The decoder's logits would differ from the stock model's, or the model's state cannot be rewound.

    The message names the architecture and the reason.
    """

    def __init__(self, architecture: str, reason: str):
        super().__init__(f"{architecture} is not supported: {reason}")
        self.architecture = architecture
        self.reason = reason


def require_weights(architecture: str, source: object, missing: Iterable[str]) -> None:
    """
    Refuse a model whose files lack weights, which transformers initialises at random.

    Args:
        architecture: The model's class.

        source: Where its files are.

        missing: Names of the weights.

    Raises:
        UnsupportedArchitecture: There are some.
    """
    if names := sorted(missing):
        raise UnsupportedArchitecture(
            architecture, f"{source} lacks {len(names)} of its weights, such as {names[0]}"
        )
