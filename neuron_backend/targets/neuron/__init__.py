"""AWS Neuron: native and traced programs."""
