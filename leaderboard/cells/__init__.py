"""Cells: one training, one attack in a process of its own, one score."""
