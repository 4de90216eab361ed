"""Reconstruction from what model perturbation sends beside its gradient."""
