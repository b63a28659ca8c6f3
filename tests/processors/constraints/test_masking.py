"""Masking of logits by token id."""

import torch

from decodekit.processors.constraints.masking import keep_only


class TestKeepOnly:
    def test_keeps_each_columns_own(self) -> None:
        """With their logits; a forbidden one stays so."""
        logits = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, -torch.inf]]])

        kept = keep_only(logits, torch.tensor([[[2], [2]]]))

        assert [[-torch.inf, -torch.inf, 3.0], [-torch.inf] * 3] == kept[0].tolist()
