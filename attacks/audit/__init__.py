"""Attacks that estimate a lower bound of epsilon."""
