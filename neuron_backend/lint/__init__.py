"""Rules of neuronx-cc, checked on graphs before a compiler runs."""
