"""Stop conditions and their composition."""
