"""
A stand-in for torch-neuronx 2.9: lowers with torch_xla, runs on XLA's CPU client.

The signatures are those of AWS's `PyTorch NeuronX Tracing API for Inference`. What the real package
would refuse is refused here: operations without an XLA lowering, what neuronx-cc is known to reject,
shapes other than those that were traced. Numbers are float32 as on a CPU, not as on the device.
"""

from .tracing import move_trace_to_device, trace

__version__ = "2.9.0+stand.in"

__all__ = ["move_trace_to_device", "trace"]
