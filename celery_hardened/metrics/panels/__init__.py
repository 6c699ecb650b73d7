"""What the dashboard shows, row by row."""
