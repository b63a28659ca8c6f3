"""What a generation yields: events, text, log-probabilities, statistics."""
