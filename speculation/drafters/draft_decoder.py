"""Validation of draft decoders."""

from ...decoding.engine.compatibility import check_decoder
from ...decoding.forward_checks import require_decoder
from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import Decoder, DecoderShape


def a_decoder(instance: object, attribute: object, value: Decoder) -> None:
    """Attrs validator: *value* must be a decoder."""
    require_decoder(value)


def a_decoder_or_several(instance: object, attribute: object, value: AnyDecoder) -> None:
    """Attrs validator: *value* must be a decoder, or what stands for several."""
    check_decoder(value)


def check_rows(decoder: AnyDecoder, target: DecoderShape) -> None:
    """Raise ``ValueError`` unless *decoder* has a row for each of the target's."""
    rows = decoder.shape.batch_size
    if rows < target.batch_size:
        raise ValueError(f"the draft must have at least the target's {target.batch_size} rows: got {rows}")
