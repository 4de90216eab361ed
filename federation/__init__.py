"""Parties, messages, transcript, views; the models; the round loop. Knows no attack and no metric."""

if __name__ != "leakboard.federation":
    raise ImportError("import leakboard.federation: LeakBoard's code has no other name than `leakboard`.")
