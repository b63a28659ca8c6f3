"""Drafting with a smaller model."""

import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.speculation import DraftModel, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

TABLE = torch.randn(31, 9, generator=torch.Generator().manual_seed(0))


class TestDraftModel:
    def test_a_perfect_draft_is_always_kept(self) -> None:
        """With equal draft and target every draft token is accepted, also when sampling: τ = k + 1."""
        fast = SpeculativeGenerator(
            ScriptedDecoder(TABLE),
            DraftModel(ScriptedDecoder(TABLE)),
            sampler=Sample(seed=3),
            stop=MaxNewTokens(41),
            num_draft_tokens=4,
        )
        result = fast([1, 2, 3])

        assert 5.0 == result.statistics.mean_accepted_length
        assert [8, 8, 8, 8] == result.statistics.accepted
        # One forward for the prompt and the first token, then 40 tokens in 8 verifications of 5.
        assert 9 == result.statistics.forwards

    def test_the_draft_catches_up_in_one_forward(self) -> None:
        """After a fully accepted draft the missing token is fed together with the newest one."""
        draft = ScriptedDecoder(TABLE, widths=(1, 2, 16), scored_width=1)
        fast = SpeculativeGenerator(
            ScriptedDecoder(TABLE), DraftModel(draft), stop=MaxNewTokens(11), num_draft_tokens=4
        )
        fast([1, 2, 3])

        assert [16, 1, 1, 1, 2, 1, 1, 1] == draft.forwards

    def test_drafts_as_far_as_its_own_positions_go(self) -> None:
        """A draft model with fewer positions stops drafting at its end, and the text is complete."""
        target = ScriptedDecoder(TABLE, max_length=64)
        draft = DraftModel(ScriptedDecoder(TABLE, max_length=20))
        fast = SpeculativeGenerator(target, draft, num_draft_tokens=4, stop=MaxNewTokens(50))([1, 2])
        plain = Generator(ScriptedDecoder(TABLE, max_length=64), stop=MaxNewTokens(50))([1, 2])

        assert plain.ids == fast.ids
        assert sum(fast.statistics.drafted) < 25

    @pytest.mark.parametrize("decoder", ["some/model", torch.nn.Linear(2, 2), None])
    def test_needs_a_decoder(self, decoder: object) -> None:
        """A path or a model is not a decoder."""
        with pytest.raises(TypeError, match=r"'decoder' must have a shape and forward.*, as compile_decoder"):
            DraftModel(decoder)  # type: ignore[arg-type]

    def test_vocabularies_must_be_equal(self) -> None:
        """A draft of another vocabulary is refused when the generator is built."""
        draft = DraftModel(ScriptedDecoder(TABLE[:, :8]))

        with pytest.raises(ValueError, match="vocabulary must be the target's, 9: got 8"):
            SpeculativeGenerator(ScriptedDecoder(TABLE), draft)

    def test_the_draft_needs_as_many_rows(self) -> None:
        """A draft of fewer rows is refused when the generator is built."""
        draft = DraftModel(ScriptedDecoder(TABLE))

        with pytest.raises(ValueError, match="at least the target's 2 rows: got 1"):
            SpeculativeGenerator(ScriptedDecoder(TABLE, batch_size=2), draft)
