"""Incremental detokenisation: token ids to text."""
