"""Code that membership attacks share."""
