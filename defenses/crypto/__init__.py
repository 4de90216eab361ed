"""Cryptography that several defenses share. A research simulator: nothing here runs in constant time."""
