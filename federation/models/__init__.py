"""The networks: one file a family, found by being there."""
