"""AWS Neuron targets: native (TorchNeuron) and traced (torch-neuronx 2.9) programs."""
