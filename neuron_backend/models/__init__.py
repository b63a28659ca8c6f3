"""Hugging Face models as decoders need them: sources, architectures, fused projections, early exit."""
