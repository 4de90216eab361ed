"""Reconstruction in closed form."""
