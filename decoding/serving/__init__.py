"""Many requests on one decoder, and conversations."""
