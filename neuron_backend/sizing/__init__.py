"""What a model takes and how fast it can be, before anything is compiled."""
