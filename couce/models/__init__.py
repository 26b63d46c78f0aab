"""Models as files: their names, their descriptions, and whether they are safe to open."""
