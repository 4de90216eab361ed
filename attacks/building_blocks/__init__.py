"""What attacks of several goals share."""
