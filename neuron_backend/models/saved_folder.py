"""Folders of saved decoders, which have a model's files too."""

NAME = "decoder.json"
"""Name of the file that describes the decoder."""
