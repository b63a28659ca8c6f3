"""Saving and loading decoders, in folders and on the hub."""
