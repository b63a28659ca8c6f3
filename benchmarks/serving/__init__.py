"""Many requests at once."""
