"""Policies for the number of draft tokens."""
