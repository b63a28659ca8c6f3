"""Draw samples, and choose the best."""

from collections.abc import Iterator
from typing import Any

import attrs
from attrs import validators

from ..optional_protocols import takes_argmax
from ..results.events import Event
from ..validation import a_whole_number, as_whole, is_whole
from .candidates import Choices, Scorer, choices_of
from .likelihood import LogLikelihood
from .sample_sources import Samples, SampleSource, as_source


@attrs.frozen(eq=False)
class BestOfN:
    """
    Draw *num_samples* samples of each prompt, score them, and choose the best.

    The score decides what it is: best of n by :class:`~.likelihood.LogLikelihood` or by a function such as a
    reward model (:class:`~.scored_by.ScoredBy`), a majority vote
    (:class:`~.self_consistency.SelfConsistency`), or :class:`~.minimum_bayes_risk.MinimumBayesRisk`.

    Raises:
        TypeError: *source* is no source of samples, or *by* scores none.

        ValueError: The sampler is greedy, and there is more than one sample.

    >>> from decodekit.decoding import Generator, MaxNewTokens, Sample
    >>> from decodekit.decoding.strategies.scored_by import ScoredBy
    >>> from decodekit.testing import ScriptedDecoder
    >>> import torch
    >>> decoder = ScriptedDecoder(torch.zeros(1, 5), batch_size=4)
    >>> generator = Generator(decoder, sampler=Sample(seed=0), stop=MaxNewTokens(3))
    >>> result = BestOfN(generator, 4, by=ScoredBy(lambda candidate: sum(candidate.ids)))([1, 2])
    >>> choice = result.choices[0]
    >>> len(choice.candidates), choice.scores[choice.index] == max(choice.scores)
    (4, True)
    """

    source: Any = attrs.field(converter=as_source)
    """A generator, or :class:`~.sample_sources.Batched`. It must sample at random."""

    num_samples: int = attrs.field(
        default=8, converter=as_whole, validator=[a_whole_number, validators.ge(1)]
    )
    """Samples of each prompt. More samples than the decoder has rows take turns."""

    by: Scorer = attrs.field(factory=LogLikelihood, kw_only=True)
    """Scores the samples of a prompt."""

    def __attrs_post_init__(self) -> None:
        """Check the parts."""
        if not isinstance(self.source, SampleSource):
            raise TypeError(f"'source' must be a Generator, or Batched(batcher, parts): got {self.source!r}")
        if isinstance(self.by, type) or not isinstance(self.by, Scorer):
            raise TypeError(
                "'by' must score the samples of a prompt, such as LogLikelihood() or, for a function of one, "
                f"ScoredBy(function): got {self.by!r}"
            )
        sampler = self.source.parts.sampler
        if self.num_samples > 1 and takes_argmax(sampler):
            raise ValueError(f"'sampler' must sample at random, or all samples are the same: got {sampler!r}")

    def __call__(self, prompts: Any, random_stream: int = 0) -> Choices:
        """
        Draw and choose.

        Args:
            prompts: As in a call of a generator.

            random_stream: The random stream of the first sample of the first prompt; sample *s* of prompt *p*
                has ``random_stream + p * num_samples + s``.

        Raises:
            TypeError: As in a call of a generator.

            ValueError: Likewise; or a wrong number of scores.
        """
        samples = self._samples(prompts, random_stream)
        while True:
            try:
                next(samples)
            except StopIteration as ended:
                return choices_of(ended.value, self.num_samples, self.by)

    def stream(self, prompts: Any, random_stream: int = 0) -> Iterator[Event | Choices]:
        """
        The events of all samples as they occur, and at last the result; arguments as in a call.

        Sample *s* of prompt *p* is row ``p * num_samples + s``. Closing the iterator ends the generation.
        """
        return self._streamed(self._samples(prompts, random_stream))

    def _streamed(self, samples: Samples) -> Iterator[Event | Choices]:
        generation = yield from samples
        yield choices_of(generation, self.num_samples, self.by)

    def _samples(self, prompts: Any, random_stream: int) -> Samples:
        if not is_whole(random_stream):
            raise TypeError(f"'random_stream' must be a whole number: got {random_stream!r}")
        source: SampleSource = self.source
        rows = source.rows(prompts)
        return source.samples(rows, self.num_samples, int(random_stream), self.by.logprobs)
