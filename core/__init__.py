"""What every other package stands on: errors, plugins, seeds, randomness. Imports nothing of ours."""

if __name__ != "leakboard.core":
    raise ImportError("import leakboard.core: LeakBoard's code has no other name than `leakboard`.")
