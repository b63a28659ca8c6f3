"""Position-addressed KV cache: buffers and writes, overflow, masks, geometry, shapes, spans (KV buckets)."""
