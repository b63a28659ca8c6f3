"""Chain and selection as one."""

import torch

from decodekit.decoding import Choose, Generator, Greedy, History, MaxNewTokens, Sample, StopTokens
from decodekit.processors import Chain, SuppressTokens, Temperature
from decodekit.testing import ScriptedDecoder, last_token

HISTORY = History(torch.zeros(1, 1, 4).long(), torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([0]))


class TestChoose:
    def test_gives_the_processed_scores(self) -> None:
        """The scores are what the selection saw."""
        logits = torch.tensor([[[1.0, 2.0], [4.0, 2.0]]])
        ids, scores = Choose(Temperature(2.0), Greedy())(logits, HISTORY)

        assert [[1, 0]] == ids.tolist()
        assert torch.equal(logits / 2, scores)

    def test_no_token_left_is_no_choice(self) -> None:
        """A column without a token, or of garbage, gives -1 and leaves its neighbour alone."""
        for selection in (Greedy(), Sample()):
            for nothing in (-torch.inf, torch.nan):
                logits = torch.tensor([[[nothing, nothing], [0.0, -torch.inf]]])

                assert [[-1, 0]] == Choose(None, selection)(logits, HISTORY)[0].tolist()

    def test_the_row_ends_and_the_stage_is_named(self) -> None:
        """A chain that forbids everything ends the row with its name, and not the other row."""
        table = torch.full((3, 3), -torch.inf)
        table[0, 1] = table[1, 2] = table[2, 2] = 0.0
        decoder = ScriptedDecoder(table, batch_size=2, line=last_token)
        generator = Generator(
            decoder, processors=Temperature(0.5) | SuppressTokens([1]), stop=MaxNewTokens(3)
        )
        result = generator([[0], [1]])

        assert [[], [2, 2, 2]] == result.ids
        assert result.endings[0] is not None
        assert ("no_token_left", repr(SuppressTokens([1]))) == (
            result.endings[0].reason,
            result.endings[0].matched,
        )

    def test_the_stage_is_found_under_parameters_of_rows(self) -> None:
        """A chain with one value a row is asked about the batch, and names NaN as what it is."""

        def broken(logits: torch.Tensor, history: History) -> torch.Tensor:
            return torch.cat([logits[..., :1] * torch.nan, logits[..., 1:]], dim=-1)

        decoder = ScriptedDecoder(torch.zeros(1, 3), batch_size=2)
        empty = Generator(decoder, processors=Temperature([0.5, 1.0]) | SuppressTokens([0, 1, 2]))([[1], [2]])
        garbage = Generator(decoder, processors=Temperature([0.5, 1.0]) | broken)([[1], [2]])

        assert [repr(SuppressTokens([0, 1, 2]))] * 2 == [e.matched for e in empty.endings if e]
        assert [f"{broken!r}, which gave NaN"] * 2 == [e.matched for e in garbage.endings if e]

    def test_the_prompt_is_not_taken_for_a_choice(self) -> None:
        """When no token was left, a stop that the prompt's last token would meet does not fire."""
        decoder = ScriptedDecoder(torch.full((1, 3), -torch.inf))
        result = Generator(decoder, stop=StopTokens([2]))([1, 2])

        assert [[]] == result.ids
        assert result.endings[0] is not None
        assert ("no_token_left", "the decoder") == (result.endings[0].reason, result.endings[0].matched)

    def test_a_decoder_without_tokens_is_named_too(self) -> None:
        """When the raw logits are empty already, no stage is blamed."""
        logits = torch.full((1, 1, 2), -torch.inf)

        assert "the decoder" == Choose(Chain(), Greedy()).emptied_by(logits, HISTORY, 0, 0)
