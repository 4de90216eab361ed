"""Attacks that rebuild training images."""
