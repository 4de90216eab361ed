"""Attacks: one file each, found by being there. An attack sees a view and what the cell grants it, never the truth."""

if __name__ != "leakboard.attacks":
    raise ImportError("import leakboard.attacks: LeakBoard's code has no other name than `leakboard`.")
