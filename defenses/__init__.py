"""Defenses: one file each, found by being there. A defense knows no attack."""

if __name__ != "leakboard.defenses":
    raise ImportError("import leakboard.defenses: LeakBoard's code has no other name than `leakboard`.")
