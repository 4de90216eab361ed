"""The engine: which job runs when and where, and how a run goes."""
