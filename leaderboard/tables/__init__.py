"""Tables: the form that all tables share, its formats, and those that list what was measured."""
