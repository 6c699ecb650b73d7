"""Counting what happens, exactly, where it happens; and showing it."""
