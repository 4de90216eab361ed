"""Ranking: intervals, evidence, the worst case, and the leaderboards."""
