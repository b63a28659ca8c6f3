"""Text out of token ids: incremental detokenisation."""
