"""Code that attacks of several goals share."""
