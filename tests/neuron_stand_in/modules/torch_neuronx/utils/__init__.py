"""Helpers of torch_neuronx."""
