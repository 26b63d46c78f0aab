"""What several commands share: messages on the terminal, options, tables."""
