"""What every other package stands on: errors, plugins, seeds, randomness. Imports nothing of ours."""
