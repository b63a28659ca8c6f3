"""Length of the common prefix of two sequences of ids."""

import numpy as np
from numpy.typing import NDArray


def common_prefix_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """The number of leading ids that both have."""
    reach = min(len(one), len(other))
    differ = one[:reach] != other[:reach]
    return int(differ.argmax()) if differ.any() else reach
