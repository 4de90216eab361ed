"""Publishing: submit records, verify them, compare two runs."""
