"""Records become statistics, tables and pages: what is published, and how sure it is."""
