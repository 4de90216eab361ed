"""How each of our own goals is ranked: one module per goal, found by the goal's name."""
