"""Hugging Face models as decoders need them: source, weights, architecture, fused projections, early exit."""
