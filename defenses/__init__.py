"""Defenses: one file each, found automatically. A defense does not know any attack."""

if __name__ != "leakboard.defenses":
    raise ImportError("import leakboard.defenses: LeakBoard's code has no other name than `leakboard`.")
