"""Many trainings side by side, kept so that an interrupted study goes on where it was."""
