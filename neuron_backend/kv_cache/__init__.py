"""Position-addressed KV cache: buffers and writes, masks, geometry, shapes, spans (KV buckets)."""
