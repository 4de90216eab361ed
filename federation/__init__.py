"""Parties, messages, transcript, views; the models; the round loop. It does not know attacks or metrics."""

if __name__ != "leakboard.federation":
    raise ImportError("import leakboard.federation: LeakBoard's code has no other name than `leakboard`.")
