"""Stochastic beams."""

import attrs
from attrs import validators

from ...sampling import noise
from ...validation import a_whole_number, as_whole
from .beam_stop import PromptStop
from .sampled_beams import SampledBeams
from .strategy import BeamStrategy


@attrs.frozen(eq=False, kw_only=True)
class StochasticBeams(BeamStrategy):
    """
    Draw *beams* different sequences of each prompt: a sample without replacement from the model.

    The first is a plain sample of the whole sequence; each further one is drawn from the others, by their
    probabilities. So no forward is spent on a sequence that is there already. The distribution is that of
    the processed logits, renormalised; a temperature, for example, is a processor.

    Kool, van Hoof and Welling, 2019, `Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for
    Sampling Sequences Without Replacement <https://arxiv.org/abs/1903.06059>`_, algorithm 1.

    The result's ``log_probabilities`` are the sequences' log-probabilities and its ``scores`` the perturbed
    ones, in descending order. The root's is drawn too, not set to 0, so that with k + 1 beams the last
    score is the threshold κ of section 4.2: a sequence is above it with probability
    ``1 - exp(-exp(log_probability - κ))``, which makes importance weights. With fewer beams and the same
    seed, the sequences are the first ones.
    """

    seed: int | None = attrs.field(
        default=None, converter=as_whole, validator=validators.optional(a_whole_number)
    )
    """Any integer. None: a fresh one for each call, which the result reports."""

    @property
    def _returned(self) -> int:
        return self.beams

    def _run_seed(self) -> int:
        return noise.fresh_seed() if self.seed is None else self.seed

    def _begin(self, stop: PromptStop, prompt: int, stream: int) -> SampledBeams:
        return SampledBeams(self.beams, stop, stream, prompt)
