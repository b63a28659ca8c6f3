"""Many requests on one decoder."""
