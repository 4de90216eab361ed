"""Attacks: one file each, found automatically. An attack sees a view and what the cell grants, never the truth."""

if __name__ != "leakboard.attacks":
    raise ImportError("import leakboard.attacks: LeakBoard's code has no other name than `leakboard`.")
