"""The contract checks of a decoder."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding.forward_checks import check_copy, check_tree_inputs
from decodekit.decoding.trees import depths
from decodekit.neuron_backend import StaticDecoder
from decodekit.testing import ScriptedDecoder, check_decoder, last_token, whole_prefix

from .scripted import TABLE, scripted


class TestCheckDecoder:
    @pytest.mark.parametrize("line", [whole_prefix, last_token])
    def test_passes_a_decoder_that_keeps_the_contract(self, line: object) -> None:
        """The scripted decoder, at any batch size."""
        check_decoder(scripted(line=line))
        check_decoder(ScriptedDecoder(TABLE, batch_size=1, max_length=16, widths=(2,), scored_width=2))

    @pytest.mark.parametrize("line", [whole_prefix, last_token])
    def test_passes_a_decoder_that_scores_trees(self, line: object) -> None:
        """At any batch size, also with trees wider than a row is long."""
        for batch_size in (1, 3):
            check_decoder(
                ScriptedDecoder(
                    TABLE, batch_size, 12, widths=(1, 4), scored_width=4, line=line, tree_widths=(1, 7, 20)
                )
            )

    def test_passes_a_decoder_that_feeds_and_copies_rows(self) -> None:
        """At any batch size."""
        check_decoder(scripted(row_widths=(1, 12), copies_rows=True))
        check_decoder(
            ScriptedDecoder(TABLE, 1, 16, widths=(2, 4), scored_width=2, row_widths=(4,), copies_rows=True)
        )

    def test_finds_a_row_that_is_written_beside_its_own(self) -> None:
        """A forward of one row that writes into the next one."""

        class Wrong(ScriptedDecoder):
            def forward_row(self, ids: torch.Tensor, cache_pos: torch.Tensor, row: int) -> torch.Tensor:
                logits = super().forward_row(ids, cache_pos, row)
                self.slots[(row + 1) % self.batch_size] = -1
                return logits

        with pytest.raises(AssertionError, match="belongs"):
            check_decoder(Wrong(TABLE, 3, 24, widths=(1, 4), scored_width=4, row_widths=(4,)))

    def test_finds_copies_that_are_not_made_at_once(self) -> None:
        """One after the other, the first row is read when it is written already."""

        class Wrong(ScriptedDecoder):
            def copy_rows(self, source: torch.Tensor, upto: int) -> None:
                check_copy(source, upto, self.shape)
                for row, one in enumerate(source.tolist()):
                    self.slots[row] = self.slots[one]

        with pytest.raises(AssertionError, match="a copy of row"):
            check_decoder(Wrong(TABLE, 3, 24, widths=(1, 4), scored_width=4, copies_rows=True))

    @pytest.mark.parametrize("fault", ["rows", "shallow"])
    def test_finds_trees_that_are_scored_wrong(self, fault: str) -> None:
        """Another row's tree, or one without the first column's grandchildren."""

        class Wrong(ScriptedDecoder):
            def forward_tree(
                self, ids: torch.Tensor, cache_pos: torch.Tensor, parents: torch.Tensor
            ) -> torch.Tensor:
                check_tree_inputs(ids, cache_pos, parents, self.shape, self.tree_widths)
                wrong = {"rows": parents[:1].expand_as(ids), "shallow": parents.clamp(max=0)}[fault]
                return super().forward_tree(ids, cache_pos, wrong)

        decoder = Wrong(TABLE, 3, 24, widths=(1, 4), scored_width=4, tree_widths=(8,))
        # Another row's tree may be too deep for this one.
        with pytest.raises((AssertionError, ValueError), match=r"tree|positions"):
            check_decoder(decoder)

    @pytest.mark.parametrize("leaves", ["everything", "nothing"])
    def test_finds_what_a_tree_leaves(self, leaves: str) -> None:
        """Columns of other branches in the cache, or a missing first branch."""

        class Leaving(ScriptedDecoder):
            def forward_tree(
                self, ids: torch.Tensor, cache_pos: torch.Tensor, parents: torch.Tensor
            ) -> torch.Tensor:
                before = self.slots.clone()
                logits = super().forward_tree(ids, cache_pos, parents)
                if leaves == "nothing":
                    self.slots.copy_(before)
                    return logits
                for row, depth in enumerate(depths(ids.numpy(), parents.numpy())):
                    for column in (ids[row] >= 0).nonzero().flatten().tolist():
                        self._write(row, int(cache_pos[row] + depth[column]), int(ids[row, column]))
                return logits

        decoder = Leaving(TABLE, 3, 24, widths=(1, 4), scored_width=4, tree_widths=(8,))
        with pytest.raises(AssertionError, match="leaves its first branch in the cache and nothing else"):
            check_decoder(decoder)

    def test_finds_missing_refusals_of_trees(self) -> None:
        """A decoder that silently repairs parents and their dtype."""

        class Lenient(ScriptedDecoder):
            def forward_tree(
                self, ids: torch.Tensor, cache_pos: torch.Tensor, parents: torch.Tensor
            ) -> torch.Tensor:
                return super().forward_tree(
                    ids, cache_pos, parents.minimum(torch.arange(parents.shape[1]) - 1)
                )

        decoder = Lenient(TABLE, widths=(1, 4), scored_width=4, tree_widths=(8,))
        with pytest.raises(AssertionError, match="another dtype of parents must be refused"):
            check_decoder(decoder)

    @pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
    def test_passes_decoders_over_models(self, name: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
        """Every decoder over a Hugging Face model, in batches of one and of three."""
        for rows in (1, 3):
            check_decoder(StaticDecoder(tiny_model(name), batch_size=rows, max_length=40, widths=(1, 4, 12)))

    def test_passes_compiled_programs(self, compiled_llama: StaticDecoder) -> None:
        """Compiled programs too."""
        check_decoder(compiled_llama)

    def test_finds_a_cache_that_ignores_positions(self) -> None:
        """A decoder that writes every row at the first row's position."""

        class Shared(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                if (cache_pos >= 0).all() and cache_pos.max() < self.max_length:
                    cache_pos = cache_pos.min().expand(len(cache_pos))
                return super().forward(ids, cache_pos)

        decoder = Shared(TABLE, batch_size=3, max_length=12, widths=(1, 4, 12), scored_width=4)
        with pytest.raises(AssertionError, match="width 1 agrees with width 1: row 0, position 11"):
            check_decoder(decoder)

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_finds_padding_that_is_written(self, batch_size: int) -> None:
        """A decoder that treats -1 as token 0."""

        class Written(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                position = cache_pos[:, None] + torch.arange(ids.shape[1])
                inside = (position >= 0) & (position < self.max_length)
                return super().forward(torch.where((ids < 0) & inside, 0, ids), cache_pos)

        decoder = Written(TABLE, batch_size=batch_size, max_length=24, widths=(1, 4, 12), scored_width=4)
        with pytest.raises(AssertionError, match="padding writes nothing"):
            check_decoder(decoder)

    @pytest.mark.parametrize("batch_size", [1, 3])
    @pytest.mark.parametrize("widths", [(1, 4), (1, 4, 12)])
    def test_finds_padding_that_is_written_before_tokens(
        self, batch_size: int, widths: tuple[int, ...]
    ) -> None:
        """A decoder that treats -1 on the left as token 0."""

        class Written(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                position = cache_pos[:, None] + torch.arange(ids.shape[1])
                before = ((ids >= 0).cumsum(dim=1) == 0) & (ids >= 0).any(dim=1, keepdim=True)
                return super().forward(torch.where(before & (position >= 0), 0, ids), cache_pos)

        with pytest.raises(AssertionError, match="leaves the slots that it stands over"):
            check_decoder(Written(TABLE, batch_size, 24, widths=widths, scored_width=4))

    @pytest.mark.parametrize("width", [1, 4, 12])
    def test_finds_idle_rows_that_are_written(self, width: int) -> None:
        """A decoder that treats -1 as token 0 in rows of nothing else."""

        class Written(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                if ids.shape[1] == width:
                    idle = (ids < 0).all(dim=1, keepdim=True)
                    ids = torch.where(idle & (cache_pos[:, None] == 0), 0, ids)
                return super().forward(ids, cache_pos)

        with pytest.raises(AssertionError, match=r"belongs|idle rows"):
            check_decoder(Written(TABLE, 2, 24, widths=(1, 4, 12), scored_width=4))

    @pytest.mark.parametrize("widths", [(4,), (12,), (1, 4, 12)])
    def test_finds_padding_that_is_written_in_forwards_of_a_row(self, widths: tuple[int, ...]) -> None:
        """As token 0."""

        class Written(ScriptedDecoder):
            def forward_row(self, ids: torch.Tensor, cache_pos: torch.Tensor, row: int) -> torch.Tensor:
                return super().forward_row(torch.where(ids == -1, 0, ids), cache_pos, row)

        with pytest.raises(AssertionError, match=r"padding beside the tokens of one row|belongs"):
            check_decoder(Written(TABLE, 3, 24, widths=(1, 4, 12), scored_width=4, row_widths=widths))

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_finds_copies_that_change_other_rows(self, batch_size: int) -> None:
        """Slots behind the copied ones are lost in every row."""

        class Wrong(ScriptedDecoder):
            def copy_rows(self, source: torch.Tensor, upto: int) -> None:
                super().copy_rows(source, upto)
                self.slots[:, upto:] = -1

        with pytest.raises(AssertionError, match="a row that is its own source stays as it is"):
            check_decoder(Wrong(TABLE, batch_size, 24, widths=(1, 4), scored_width=4, copies_rows=True))

    def test_finds_negative_positions_refused(self) -> None:
        """A decoder without padding before the first token."""

        class Strict(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                if (cache_pos < 0).any():
                    raise ValueError("cache_pos must be >= 0")
                return super().forward(ids, cache_pos)

        decoder = Strict(TABLE, max_length=24, widths=(1, 4, 12), scored_width=4)
        with pytest.raises(ValueError, match="cache_pos"):
            check_decoder(decoder)

    def test_finds_leavings_of_other_tokens(self) -> None:
        """A decoder that never overwrites a slot."""

        class Sticky(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                ids = ids.clone()
                # What is wrong is refused below.
                known = (ids[: len(self.slots)] >= 0) & (ids[: len(self.slots)] < self.shape.vocab_size)
                for row, column in known.nonzero().tolist():
                    position = int(cache_pos[row]) + column
                    if 0 <= position < self.max_length and self.slots[row, position] >= 0:
                        ids[row, column] = self.slots[row, position]
                return super().forward(ids, cache_pos)

        decoder = Sticky(TABLE, batch_size=2, max_length=12, widths=(1, 4), scored_width=4)
        with pytest.raises(
            AssertionError,
            match="a token takes the place of the one that its slot held, and scores as in another row",
        ):
            check_decoder(decoder)

    @pytest.mark.parametrize("rows", [1, 3])
    @pytest.mark.parametrize("widths", [(1, 4), (4, 12), (1, 4, 24)])
    def test_finds_wide_forwards_that_are_not_cached(self, rows: int, widths: tuple[int, ...]) -> None:
        """Logits of a wide forward are right, but its widest leaves the cache as it was."""

        class Forgetful(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                before = self.slots.clone()
                logits = super().forward(ids, cache_pos)
                if ids.shape[1] == self.widths[-1]:
                    self.slots.copy_(before)
                return logits

        check_decoder(ScriptedDecoder(TABLE, rows, 24, widths=widths, scored_width=4))
        with pytest.raises(AssertionError, match=f"width {widths[-1]} writes its tokens into the cache"):
            check_decoder(Forgetful(TABLE, rows, 24, widths=widths, scored_width=4))

    def test_finds_forwards_of_a_row_that_are_not_cached(self) -> None:
        """Logits of one row's forward are right, but its cache stays as it was."""

        class Forgetful(ScriptedDecoder):
            def forward_row(self, ids: torch.Tensor, cache_pos: torch.Tensor, row: int) -> torch.Tensor:
                before = self.slots.clone()
                logits = super().forward_row(ids, cache_pos, row)
                self.slots.copy_(before)
                return logits

        with pytest.raises(AssertionError, match="a token is written where it belongs"):
            check_decoder(Forgetful(TABLE, 3, 24, widths=(1, 4), scored_width=4, row_widths=(4,)))

    @pytest.mark.parametrize("lenient", ["dtype", "range"])
    def test_finds_missing_refusals(self, lenient: str) -> None:
        """A decoder that repairs invalid input."""

        class Lenient(ScriptedDecoder):
            def forward(self, ids: torch.Tensor, cache_pos: torch.Tensor) -> torch.Tensor:
                if lenient == "dtype":
                    return super().forward(ids.long(), cache_pos.long())
                return super().forward(ids.clamp(max=self.shape.vocab_size - 1), cache_pos)

        decoder = Lenient(TABLE, batch_size=2, max_length=12, widths=(1, 4), scored_width=4)
        with pytest.raises(AssertionError, match=r"must be refused|must raise"):
            check_decoder(decoder)
