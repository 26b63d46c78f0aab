"""Code that several commands share: options, tables and messages on the terminal."""
