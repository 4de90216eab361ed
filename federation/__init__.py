"""Parties, messages, transcript, views; the models; the round loop. Knows no attack and no metric."""
