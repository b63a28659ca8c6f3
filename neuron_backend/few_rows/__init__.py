"""Products of few rows by weights, and their attention, which read at the speed of memory."""
