"""Code that several datasets share: reading files."""
