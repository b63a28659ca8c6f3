"""A decoder as files: saved, loaded, checked, trusted, and on the hub."""
