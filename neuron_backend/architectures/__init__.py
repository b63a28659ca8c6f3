"""Models that need more than a cache by position, and what is said of those that cannot be served."""
