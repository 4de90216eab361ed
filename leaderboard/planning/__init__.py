"""Planning: a suite becomes jobs, each with its key; the contents of a run's folder."""
