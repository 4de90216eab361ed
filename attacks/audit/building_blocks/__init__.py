"""What audits share."""
