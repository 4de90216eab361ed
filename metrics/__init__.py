"""Scores of attacks and defenses: pure functions, versioned. Only code in here and right of it sees the truth."""

if __name__ != "leakboard.metrics":
    raise ImportError("import leakboard.metrics: LeakBoard's code has no other name than `leakboard`.")
