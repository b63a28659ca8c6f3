"""Products of few rows by weights, which read the weights at the speed of memory."""
