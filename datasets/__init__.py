"""Images, their checksums, and who holds what."""

if __name__ != "leakboard.datasets":
    raise ImportError("import leakboard.datasets: LeakBoard's code has no other name than `leakboard`.")
