"""Reconstruction by matching: find images whose gradient is the observed one."""
