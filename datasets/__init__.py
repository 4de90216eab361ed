"""Images, their checksums, and who holds what."""
