"""Model perturbation (Yang et al. 2022): the server hides its weights, the clients train on what they cannot read."""
