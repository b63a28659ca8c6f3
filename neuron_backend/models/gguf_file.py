"""Models in GGUF files, read by transformers."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .gguf_header import MAGIC, GgufHeader, read_header
from .gguf_parsing import parsed_once
from .gguf_settings import complete_config, complete_generation_config, complete_model
from .unsupported import UnsupportedArchitecture, require_weights
from .without_bars import without_gguf_bar

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SUFFIX = ".gguf"
_PACKAGES = ("gguf", "accelerate")


def is_gguf(path: object) -> bool:
    """Whether *path* names a GGUF file, which need not exist."""
    return isinstance(path, str | PathLike) and Path(path).suffix == SUFFIX


def check_gguf(path: str | PathLike[str], name: str = "'model'") -> None:
    """
    Check that *path* is a GGUF file, and that the packages that read it are installed.

    Args:
        path: A path for which :func:`is_gguf` is true.

        name: Name of the argument in error messages.

    Raises:
        FileNotFoundError: There is no such file.

        ValueError: It is no GGUF file.

        ImportError: A package is missing.
    """
    from importlib.util import find_spec

    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{name} must be a file that exists: got {str(path)!r}")
    with file.open("rb") as content:
        found = content.read(len(MAGIC))
    if found != MAGIC:
        raise ValueError(f"{name} must be a GGUF file, which begins with {MAGIC!r}: got {path}, {found!r}")
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"GGUF files are read with the packages {' and '.join(_PACKAGES)}: {' and '.join(missing)} "
            "cannot be imported. Make sure to install them using `pip install 'decodekit[gguf]'`"
        )


@parsed_once()
@without_gguf_bar()
def load_gguf_model(path: str | PathLike[str], dtype: torch.dtype | None) -> "PreTrainedModel":
    """
    Load the causal LM in a GGUF file, with its weights unpacked.

    Args:
        path: A file that :func:`check_gguf` accepts.

        dtype: Dtype of the weights. None: that of the file's matrices if all have one, float32 if they are
            quantised.

    Raises:
        ValueError: It is one of several parts of a model, or damaged.

        UnsupportedArchitecture: transformers reads no causal LM of this architecture from GGUF files, or not
            all of its weights, or leaves out a setting of the file.
    """
    from transformers import AutoModelForCausalLM

    file = _absolute(path)
    header = read_header(file)
    if header.least_size > file.stat().st_size:
        raise ValueError(
            f"a GGUF file must be whole: got {file} of {file.stat().st_size} bytes, whose header describes "
            f"{header.least_size}"
        )
    # With its report, which transformers' annotations leave out.
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            str(file.parent),
            gguf_file=str(file),
            config=_completed_config(file, header),
            dtype=dtype or _own_dtype(header),
            output_loading_info=True,
            **_unpacked(),
        )
    except UnsupportedArchitecture:
        raise
    except (ValueError, NotImplementedError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedArchitecture(
            f"the model in {path}", f"transformers cannot read it as a causal LM ({error})"
        ) from error
    model: PreTrainedModel = loaded[0]
    require_weights(type(model).__name__, file, loaded[1]["missing_keys"])
    complete_model(model, file)
    if model.generation_config is not None:
        complete_generation_config(model.generation_config, header)
    return model


def unpacked_size(path: str | PathLike[str], dtype: torch.dtype | None) -> str:
    """What :func:`load_gguf_model` unpacks the weights to, such as ``"0.54 GB in float32"``."""
    header = read_header(path)
    unpacked = dtype or _own_dtype(header)
    return f"{header.count * unpacked.itemsize / 1e9:.2g} GB in {str(unpacked).removeprefix('torch.')}"


def load_gguf_config(path: str | PathLike[str]) -> "PretrainedConfig":
    """
    The config of the model in a GGUF file, without its weights, as :func:`.complete_config` completes it.

    Raises:
        FileNotFoundError, ValueError, ImportError: As :func:`check_gguf`.

        ValueError: It is one of several parts of a model, or damaged.

        UnsupportedArchitecture: The file has a setting that has no place in the config.
    """
    check_gguf(path)
    file = _absolute(path)
    header = read_header(file)
    with parsed_once():
        config = _completed_config(file, header)
    # That of the model, which transformers' config of a file leaves out.
    config.dtype = _own_dtype(header)
    return config


def _absolute(path: str | PathLike[str]) -> Path:
    """*path* as transformers is to have it, which takes a file of that name in the current folder first."""
    return Path(path).absolute()


def _own_dtype(header: GgufHeader) -> torch.dtype:
    """The dtype of the matrices; float32 where they are quantised, or of two dtypes of 16 bits."""
    from gguf import GGMLQuantizationType

    dtypes: dict[int, torch.dtype] = {
        GGMLQuantizationType.BF16: torch.bfloat16,
        GGMLQuantizationType.F16: torch.float16,
    }
    # Norms, biases, routers and positions are in float32 whatever the rest is.
    kinds = {kind for name, kind in header.types.items() if name not in header.vectors}
    kinds.discard(GGMLQuantizationType.F32)
    return dtypes.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


def _completed_config(file: Path, header: GgufHeader) -> "PretrainedConfig":
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(str(file.parent), gguf_file=str(file))
    complete_config(config, header, file)
    return config


def _unpacked() -> dict[str, Any]:
    """Options that unpack all weights; older releases of transformers do nothing else."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}
