"""Attacks: one file each, found by being there. An attack sees a view and what the cell grants it, never the truth."""
