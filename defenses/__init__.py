"""Defenses: one file each, found by being there. A defense knows no attack."""
