"""Exported models as files: what they say of themselves, and whether they are safe to open."""
