"""The base of every other package: errors, plugins, seeds, randomness. Imports no other package of ours."""

if __name__ != "leakboard.core":
    raise ImportError("import leakboard.core: LeakBoard's code has no other name than `leakboard`.")
