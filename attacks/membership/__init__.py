"""Attacks that tell who was in the training set."""
