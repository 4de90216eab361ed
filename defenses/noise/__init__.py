"""Noise distributions, calibration to a privacy budget, and accounting."""
