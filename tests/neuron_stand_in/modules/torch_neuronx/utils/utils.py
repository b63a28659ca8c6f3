"""The platform that is compiled for."""

import os


def get_platform_target(compiler_args: str = "") -> str:
    """The platform in the arguments, else that of the variable, else this machine's."""
    for argument in compiler_args.split():
        if argument.startswith("--target="):
            return argument.removeprefix("--target=")
    return os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
