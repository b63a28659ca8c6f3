"""
Speculation as transformers-neuronx spells it.

Its guide runs as it stands, with decoders of ours in place of its models::

    from decodekit.speculation.transformers_neuronx import SpeculativeGenerator

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

from ..decoding.engine.exact_match import ExactMatch
from ..decoding.protocols import Decoder, Drafter, Processor, Sampler, StopCondition, Verification
from ..decoding.sampling.greedy import Greedy
from ..decoding.stopping.end_of_sequence import EndOfSequence
from ..decoding.stopping.max_length import MaxLength
from ..decoding.validation import a_whole_number, is_whole
from .drafters.draft_model import DraftModel
from .speculative_generator import SpeculativeGenerator as Generator


@attrs.frozen(eq=False)
class SpeculativeGenerator:
    """
    Draft, target, k, and ``sample(input_ids, sequence_length=...)``.

    What it says is what plain decoding with *target* says, token for token, given equal logits.
    For streams of events, other stops, log-probabilities and statistics there is
    :class:`decodekit.speculation.SpeculativeGenerator`.

    Three things are not as there. Decoding is greedy unless *processors* and *sampler* say
    otherwise; there the first token is, and the others are drawn. Rows end on their own, are as
    long as they are, and may have any token among theirs, 0 included. And an argument that does
    nothing here (``start_ids``, ``output_logits``, ``acceptor``) is refused, not ignored.
    """

    draft: Decoder | Drafter
    """The smaller decoder, of the target's vocabulary; or what guesses in some other way."""

    target: Decoder
    """What has the last word. It scores *k* columns in one forward."""

    k: int = attrs.field(default=4, validator=[a_whole_number, validators.ge(1)])
    """
    What the target looks at in one forward, as there: its own last token, and k - 1 guesses.
    """

    processors: Processor | None = attrs.field(default=None, kw_only=True)
    """A processor or a chain of them; None leaves the logits as they are."""

    sampler: Sampler = attrs.field(factory=Greedy, kw_only=True)
    """What chooses from the processed logits."""

    verification: Verification = attrs.field(factory=ExactMatch, kw_only=True)
    """What decides how much of a draft stands; there, the acceptor."""

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot work together."""
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

            sequence_length: Tokens of a row, its prompt's among them.

            eos_token_id: What ends a row, or any of several; None for nothing.

            pad_token_id: What stands behind a row that has ended.

            attention_mask: ``[batch, length]``, 0 where *input_ids* holds no token of a row, on
                either side; None where it holds nothing else. A row's result begins with its
                own tokens, without them.

            streamer: Told of every token as it is generated: an object with ``put_event`` and
                ``end``, or, for one prompt, one of Hugging Face's.

        Returns:
            Prompts and new tokens, ``[batch, sequence_length]`` int64, right-padded.

        Raises:
            TypeError: Something that is no ids, or no number.

            ValueError: A length that a prompt leaves no room in or that the target has no
                positions for, a mask of another shape, or a prompt that the target refuses.
        """
        prompts = _prompts(input_ids, attention_mask)
        self._check(sequence_length, pad_token_id, max(map(len, prompts), default=0))
        stop: StopCondition = MaxLength(sequence_length)
        if eos_token_id is not None:
            stop = EndOfSequence(eos_token_id) | stop
        result = self._generator(stop)(prompts, streamer=streamer)
        tokens = torch.full((len(prompts), sequence_length), pad_token_id)
        for row, sequence in enumerate(result.sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        return tokens

    def _check(self, sequence_length: int, pad_token_id: int, longest: int) -> None:
        for name, value in {"sequence_length": sequence_length, "pad_token_id": pad_token_id}.items():
            if not is_whole(value):
                raise TypeError(f"'{name}' must be a whole number: got {value!r}")
        # The last token need not be fed.
        most = self.target.shape.max_length + 1
        if not longest < sequence_length <= most:
            raise ValueError(
                f"'sequence_length' must be more than the longest prompt's {longest} and at most {most}, "
                f"one more than the target's positions: got {sequence_length}"
            )


def _prompts(input_ids: Any, attention_mask: Any) -> list[list[int]]:
    """Each row's own tokens."""
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
    return [row[kept].tolist() for row, kept in zip(ids, mask != 0, strict=True)]
