"""
Speculative generator with the interface of transformers-neuronx.

The example of its guide runs unchanged, apart from imports and models::

    from decodekit.speculation.neuronx_speculative_generator import SpeculativeGenerator

    draft_neuron_model = compile_decoder(draft, max_length=256, widths=(1, 2, 64), scored_width=1)
    target_neuron_model = compile_decoder(target, max_length=256, widths=(1, 4, 64), scored_width=4)

    spec_gen = SpeculativeGenerator(draft_neuron_model, target_neuron_model, 4)
    response = spec_gen.sample(input_ids=input_ids, sequence_length=30)
    generated_text = tokenizer.decode(response[0])

`transformers-neuronx <https://github.com/aws-neuron/transformers-neuronx>`_, Developer Guide,
"Speculative sampling".
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import validators
from torch import Tensor

from ..decoding.engine.exact_match_verification import ExactMatch
from ..decoding.prompts import unpadded
from ..decoding.protocols import Decoder, Drafter, Processor, Sampler, StopCondition, Verification
from ..decoding.results.streamers import report_failure
from ..decoding.sampling.greedy import Greedy
from ..decoding.stopping.end_of_sequence import EndOfSequence
from ..decoding.stopping.max_length import MaxLength
from ..decoding.validation import a_whole_number, is_whole
from .drafters.draft_model import DraftModel
from .speculative_generator import SpeculativeGenerator as Generator


@attrs.frozen(eq=False)
class SpeculativeGenerator:
    """
    transformers-neuronx's ``SpeculativeGenerator``: ``(draft, target, k)`` and ``sample()``.

    The output equals that of plain decoding with *target*, token for token, given equal logits.
    For event streams, other stops, log-probabilities and statistics use
    :class:`decodekit.speculation.SpeculativeGenerator`.

    Three differences from transformers-neuronx: decoding is greedy unless *processors* and
    *sampler* are given (there the first token is greedy, the others are sampled); rows end
    independently, have individual lengths and may contain any token, 0 included; arguments without
    effect here (``start_ids``, ``output_logits``, ``acceptor``) are refused, not ignored.
    """

    draft: Decoder | Drafter
    """A smaller decoder of the same vocabulary, or any other drafter."""

    target: Decoder
    """The target; it scores *k* columns in one forward."""

    k: int = attrs.field(default=4, validator=[a_whole_number, validators.ge(1)])
    """
    Columns that the target scores in one forward, as there: the last token and k - 1 draft tokens.
    """

    processors: Processor | None = attrs.field(default=None, kw_only=True)
    """A processor or a chain of them; None leaves the logits as they are."""

    sampler: Sampler = attrs.field(factory=Greedy, kw_only=True)
    """Samples from the processed logits."""

    verification: Verification = attrs.field(factory=ExactMatch, kw_only=True)
    """Decides how many draft tokens are accepted; there, the acceptor."""

    def __attrs_post_init__(self) -> None:
        """Refuse incompatible parts."""
        self._generator(MaxLength(1))

    def _generator(self, stop: StopCondition) -> Generator:
        return Generator(
            self.target,
            self.draft if isinstance(self.draft, Drafter) else DraftModel(self.draft),
            num_draft_tokens=self.k - 1,
            processors=self.processors,
            sampler=self.sampler,
            verification=self.verification,
            stop=stop,
        )

    def sample(
        self,
        input_ids: Any,
        sequence_length: int,
        *,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int = 0,
        attention_mask: Any = None,
        streamer: Any = None,
    ) -> Tensor:
        """
        Generate until every row has *sequence_length* tokens or has ended.

        Args:
            input_ids: The prompts, ``[batch, length]`` integers (torch or numpy).

            sequence_length: Maximum length of a row, including its prompt.

            eos_token_id: Id, or ids, that end a row; None for none.

            pad_token_id: Padding after the end of a row.

            attention_mask: ``[batch, length]``, 0 at padding of *input_ids*, on either side; None
                without padding. The result contains no left padding.

            streamer: Receives every token as it is generated: an object with ``put_event`` and
                ``end``, or, for one prompt, a Hugging Face streamer.

        Returns:
            Prompts and new tokens, ``[batch, sequence_length]`` int64, right-padded.

        Raises:
            TypeError: *input_ids* are not integers, or an argument is not a whole number.

            ValueError: A length not above the longest prompt's or beyond the target's positions, a
                mask of another shape, or an invalid prompt.
        """
        try:
            prompts = _prompts(input_ids, attention_mask)
            self._check(sequence_length, pad_token_id, max(map(len, prompts), default=0))
            stop: StopCondition = MaxLength(sequence_length)
            if eos_token_id is not None:
                stop = EndOfSequence(eos_token_id) | stop
            generate = self._generator(stop)
        except BaseException as error:
            # A consumer may be waiting at the streamer's other end.
            report_failure(streamer, error)
            raise
        result = generate(prompts, streamer=streamer)
        tokens = torch.full((len(prompts), sequence_length), pad_token_id)
        for row, sequence in enumerate(result.sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        return tokens

    def _check(self, sequence_length: int, pad_token_id: int, longest: int) -> None:
        for name, value in {"sequence_length": sequence_length, "pad_token_id": pad_token_id}.items():
            if not is_whole(value):
                raise TypeError(f"'{name}' must be a whole number: got {value!r}")
        # The last token is not fed.
        most = self.target.shape.max_length + 1
        if not longest < sequence_length <= most:
            raise ValueError(
                f"'sequence_length' must be more than the longest prompt's {longest} and at most {most}, "
                f"one more than the target's positions: got {sequence_length}"
            )


def _prompts(input_ids: Any, attention_mask: Any) -> list[list[int]]:
    """Tokens of each row, without padding."""
    ids = np.asarray(input_ids)
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"'input_ids' must be integers: got {ids.dtype}")
    if ids.ndim != 2:
        raise ValueError(f"'input_ids' must have the shape [batch, length]: got {list(ids.shape)}")
    mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
    if mask.shape != ids.shape:
        raise ValueError(
            f"'attention_mask' must have the shape of 'input_ids', {list(ids.shape)}: got {list(mask.shape)}"
        )
    return [unpadded(row, kept) for row, kept in zip(ids.tolist(), (mask != 0).tolist(), strict=True)]
