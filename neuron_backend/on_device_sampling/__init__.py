"""On-device sampling: processors and sampler compiled into a decoder's forwards."""
