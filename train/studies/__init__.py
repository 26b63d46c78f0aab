"""Studies: many trainings side by side. An interrupted study continues where it stopped."""
