"""What several data sets share: reading files."""
