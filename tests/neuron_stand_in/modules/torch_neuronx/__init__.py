"""
Stand-in for torch-neuronx 2.9: lowers with torch_xla, runs on XLA's CPU client.

The signatures are those of AWS's `PyTorch NeuronX Tracing API for Inference`. It refuses what the real
package refuses: operations without an XLA lowering, operations that neuronx-cc is known to refuse,
and shapes that were not traced. Arithmetic is the CPU's float32, not the device's.
"""

from .tracing import move_trace_to_device, trace

__version__ = "2.9.0+stand.in"

__all__ = ["move_trace_to_device", "trace"]
