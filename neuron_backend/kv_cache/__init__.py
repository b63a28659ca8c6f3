"""The cache that is addressed by position: buffers, masks, shapes, spans."""
