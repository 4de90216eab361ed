"""Attacks that infer which records were in the training set."""
