"""Code that several defenses share."""
