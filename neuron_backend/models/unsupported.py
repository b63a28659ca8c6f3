"""The error for models that this backend cannot serve."""


class UnsupportedArchitecture(ValueError):  # noqa: N818 (it reads as a sentence where it is raised)
    """
    The decoder's logits would differ from the stock model's, or the model's state cannot be rewound.

    The message names the architecture and the reason.
    """

    def __init__(self, architecture: str, reason: str):
        super().__init__(f"{architecture} is not supported: {reason}")
        self.architecture = architecture
        self.reason = reason
