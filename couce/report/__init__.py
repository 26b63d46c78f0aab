"""What an analysis leaves behind: tables, pictures and a self-contained page."""
