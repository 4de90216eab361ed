"""Goals: what an attack wants, how its answer travels, and what it is scored against. One module per goal."""
