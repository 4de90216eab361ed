"""What attacks share that regress images on gradients."""
