"""Records become statistics, tables and pages: what is published, and how sure it is."""

if __name__ != "leakboard.leaderboard":
    raise ImportError("import leakboard.leaderboard: LeakBoard's code has no other name than `leakboard`.")
