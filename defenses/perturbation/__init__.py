"""Model perturbation (Yang et al. 2022): the server hides its weights, and clients train on the perturbed model."""
