"""What membership attacks share."""
