"""Attacks that steal the model."""
