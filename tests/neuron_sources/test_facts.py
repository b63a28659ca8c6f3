"""The sources say what the adapters and the stand-ins rely on: a new version that does not is named here."""

import pytest

from .facts import Fact
from .nxd_inference.facts import FACTS as NXD_INFERENCE
from .optimum_neuron.facts import FACTS as OPTIMUM_NEURON
from .transformers_neuronx.facts import FACTS as TRANSFORMERS_NEURONX

pytestmark = pytest.mark.neuron_sources


@pytest.mark.parametrize("fact", [*NXD_INFERENCE, *OPTIMUM_NEURON, *TRANSFORMERS_NEURONX], ids=str)
def test_a_fact_holds(fact: Fact) -> None:
    """In the checkout, whatever its commit."""
    assert fact.holds(), f"no longer so: {fact} (it was in commit {fact.checkout.commit})"
