"""Records: what one is, what is checked when one is read, and which code made it."""
