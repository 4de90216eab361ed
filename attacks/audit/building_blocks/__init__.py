"""Code that audits share."""
