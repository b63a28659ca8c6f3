"""Tensor parallelism: one model sharded over several processes or Neuron cores."""
