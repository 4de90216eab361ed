"""The networks: one file per family, found automatically."""
