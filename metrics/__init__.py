"""Scores of attacks and defenses: pure functions, versioned. Only code in here and right of it sees the truth."""
