"""Planning: a suite becomes jobs, each with its key; what a run's folder holds."""
