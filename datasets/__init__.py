"""Datasets: images, their checksums, and which party holds which records."""

if __name__ != "leakboard.datasets":
    raise ImportError("import leakboard.datasets: LeakBoard's code has no other name than `leakboard`.")
