"""What users call: `import leakboard as lb` hands on the names of this room, and the command line stands on it."""
