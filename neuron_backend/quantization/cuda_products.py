"""
How a GPU multiplies by weights in few bits, as ``torch.export`` is to see it.

The weights are widened where they are multiplied, and the activations keep their dtype, so a
decoder scores alike at every width. Of a few rows, each product is a sum over its own row: Inductor makes
that a loop which reads each stored weight once, and nothing wide is written. Of many rows, as of a
prompt, the weights are widened once for all of them. A product in float8 alone (``torch._scaled_mm``) would
round the activations to three bits of mantissa as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

from . import int4_linear, int8_linear
from .cpu_products import int4_product, int8_product
from .int4_linear import Int4Linear
from .int8_linear import Int8Linear


@contextmanager
def cuda_products(model: nn.Module) -> Iterator[None]:
    """Let the quantised layers of *model* multiply as a GPU is to, for as long as it is traced."""
    layers = [layer for layer in model.modules() if isinstance(layer, Int8Linear | Int4Linear)]
    try:
        for layer in layers:
            if isinstance(layer, Int8Linear):
                layer.product = partial(int8_product, aten=False)
            else:
                layer.product = partial(int4_product, aten=False)
        yield
    finally:
        for layer in layers:
            if isinstance(layer, Int8Linear):
                layer.product = int8_linear.plain_product
            else:
                layer.product = int4_linear.plain_product
