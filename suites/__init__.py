"""Suites: what to run, as YAML, validated before anything starts."""
