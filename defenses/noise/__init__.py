"""Noise laws, calibration to a privacy budget, and accounting."""
