"""
Saved decoders on the Hugging Face hub.

A repository holds the files of a saved decoder's folder and a model card. The same checks apply: every
file must have the hash in decoder.json, and programs that this machine did not compile are compiled again
unless the caller trusts them.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifacts.manifest import NAME, PLAIN_WEIGHTS, PROGRAMS, QUANTIZED_WEIGHTS, Manifest
from ..static_decoder import StaticDecoder
from ..tensor_parallel.lost_ranks import fail_together, report_lost_ranks
from .saving import save_decoder

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from transformers import PreTrainedTokenizerBase

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_CARD = "README.md"


def is_repository(name: object) -> bool:
    """
    Whether *name* is of the form ``"user/name"`` and not an existing path.

    A path that is not a string, starts with ``.`` or ``/``, or has more parts, is a folder.
    """
    return _is_repository_name(name) and not Path(str(name)).exists()


def download_decoder(
    repository: str, *, revision: str | None = None, token: str | bool | None = None
) -> Path:
    """
    Download a saved decoder, only the files that its decoder.json lists, and return the cached folder.

    ``HF_HUB_OFFLINE=1`` uses only the hub's cache.

    Args:
        repository: ``"user/name"``.

        revision: A branch, tag or commit. None: the main branch.

        token: For private repositories. None: the one that is logged in.

    Raises:
        ValueError: There is no such repository or revision, or it holds no saved decoder.

        FileNotFoundError: The hub cannot be reached, and the repository is not in its cache.
    """
    # Imported here: loading a local folder does not need it.
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        manifest = Path(hf_hub_download(repository, NAME, revision=revision, token=token))
        # The manifest lists the files to download, all of the same commit.
        wanted = [NAME, *Manifest.read(manifest.parent).files]
        return Path(
            snapshot_download(repository, revision=manifest.parent.name, token=token, allow_patterns=wanted)
        )
    except RevisionNotFoundError as error:
        raise ValueError(f"'revision' must be one of {repository}'s: got {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"a repository must exist, and be readable with the token: got {repository!r}; no folder is "
            "called so either"
        ) from error
    # Before EntryNotFoundError, its base class.
    except LocalEntryNotFoundError as error:
        raise FileNotFoundError(
            f"the hub cannot be reached (or HF_HUB_OFFLINE is set), and its cache has no whole {repository}, "
            f"revision {revision or 'main'}; no folder is called so either"
        ) from error
    except EntryNotFoundError as error:
        raise ValueError(
            f"a repository must hold a saved decoder with a {NAME}: got {repository!r}; "
            "compile_decoder takes models"
        ) from error


def push_decoder(
    decoder: StaticDecoder,
    repository: str,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    commit_message: str | None = None,
) -> str:
    """Upload as :meth:`~..compiled_decoder.CompiledDecoder.push_to_hub` does."""
    from huggingface_hub import HfApi

    if not _is_repository_name(repository):
        raise ValueError(f"'repo_id' must be of the form 'user/name': got {repository!r}")
    ranks, address = decoder.ranks, ""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "decoder"
        save_decoder(decoder, folder, tokenizer)
        with report_lost_ranks(ranks), fail_together(ranks):
            if ranks is None or ranks.rank == 0:
                address = _upload(HfApi(token=token), folder, repository, private, revision, commit_message)
    return address if ranks is None else ranks.broadcast(address.encode()).decode()


def _upload(
    api: "HfApi",
    folder: Path,
    repository: str,
    private: bool | None,
    revision: str | None,
    commit_message: str | None,
) -> str:
    manifest = Manifest.read(folder)
    api.create_repo(repository, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repository, branch=revision, exist_ok=True)
    # An existing card is kept: it may be edited by hand.
    if not api.file_exists(repository, _CARD, revision=revision):
        (folder / _CARD).write_text(_card(repository, manifest, _architecture(folder)), "utf-8")
    commit = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        revision=revision,
        commit_message=commit_message or f"decodekit {manifest.versions['decodekit']}: a compiled decoder",
        # Stale programs, and weights in the other format. Uploaded files are not deleted.
        delete_patterns=[f"{PROGRAMS}*", PLAIN_WEIGHTS, QUANTIZED_WEIGHTS],
    )
    return str(commit.commit_url)


def _is_repository_name(name: object) -> bool:
    return isinstance(name, str) and bool(_REPOSITORY.fullmatch(name))


def _architecture(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return str((config.get("architectures") or ["a causal LM"])[0])


def _card(repository: str, manifest: Manifest, architecture: str) -> str:
    """Model card: metadata for the hub, how to load the decoder, and its facts."""
    shape = manifest.shape
    rows = {
        "architecture": architecture,
        "rows": shape.batch_size,
        "positions": shape.max_length,
        "widths": _list(shape.widths),
        "tree widths": _list(manifest.tree_widths) or "none",
        "spans": _list(manifest.spans),
        "dtype": manifest.dtype,
        "linear layers": _list(sorted(set(manifest.quantized.values()))) or manifest.dtype,
        "target": manifest.target,
        "processes": manifest.tp_degree,
        "CPU": manifest.cpu_family,
        **manifest.versions,
    }
    facts = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: decodekit
pipeline_tag: text-generation
tags:
- decodekit
---

# {repository.split("/")[1]}

A decoder of fixed shapes, saved by decodekit:

```python
from decodekit.neuron_backend import load_decoder

decoder = load_decoder("{repository}")
```

| | |
| --- | --- |
{facts}

Programs are native code. A machine that did not compile them compiles them again from the weights,
unless `load_decoder` is called with `trust_programs=True`.
"""


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
