"""Reconstruction from what model perturbation sends in addition to its gradient."""
