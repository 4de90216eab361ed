"""Attacks that measure epsilon from below."""
