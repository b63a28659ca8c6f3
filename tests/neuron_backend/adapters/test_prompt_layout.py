import numpy as np

from decodekit.neuron_backend.adapters.prompt_layout import lay_out_prompts


def rows(*tokens: list[int]) -> list[np.ndarray]:
    return [np.array(row) for row in tokens]


class TestLayOutPrompts:
    """Rows of one context encoding."""

    def test_the_last_token_has_the_highest_position(self):
        """Padding repeats the token, at position 0, and is masked."""
        ids, positions, mask = lay_out_prompts(rows([5, 6, 7, 8], [9, 3, 4]), 8)

        assert [[5, 6, 7, 8], [9, 3, 4, 4]] == ids.tolist()
        assert [[0, 1, 2, 3], [0, 1, 2, 0]] == positions.tolist()
        assert [[1, 1, 1, 1], [1, 1, 1, 0]] == mask.tolist()

    def test_short_rows_fill_the_largest_bucket(self):
        """So that the library adds no padding at position 1."""
        ids, positions, _ = lay_out_prompts(rows([5, 6], [9, 3, 4]), 6)

        assert [[5, 6, 6, 6, 6, 6], [9, 3, 4, 4, 4, 4]] == ids.tolist()
        assert [[0, 1, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0]] == positions.tolist()

    def test_a_single_token_is_every_column(self):
        """All at position 0, none masked: any scored column is right."""
        ids, positions, mask = lay_out_prompts(rows([5]), 4)

        assert [[5, 5, 5, 5]] == ids.tolist()
        assert [[0, 0, 0, 0]] == positions.tolist()
        assert [[1, 1, 1, 1]] == mask.tolist()
