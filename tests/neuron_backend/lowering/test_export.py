"""Suppression of torch's own deprecation warnings."""

import warnings

import pytest

from decodekit.neuron_backend.lowering.export import without_known_warnings


def test_another_warning_is_heard() -> None:
    """Other warnings of the same category are raised, and afterwards the known ones are again."""
    known = "`isinstance(treespec, LeafSpec)` is deprecated"
    with without_known_warnings():
        warnings.warn(known, FutureWarning, stacklevel=1)
        with pytest.warns(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)

    with pytest.warns(FutureWarning, match="LeafSpec"):
        warnings.warn(known, FutureWarning, stacklevel=1)
