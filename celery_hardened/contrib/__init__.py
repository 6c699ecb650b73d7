"""What the package has for other frameworks; nothing of the core imports it."""
