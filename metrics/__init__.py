"""Scores of attacks and defenses: pure functions with versions. Only this package and later ones see the truth."""

if __name__ != "leakboard.metrics":
    raise ImportError("import leakboard.metrics: LeakBoard's code has no other name than `leakboard`.")
