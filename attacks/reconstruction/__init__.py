"""Attacks that reconstruct training images."""
