"""Is this process alive, ready, started? Asked by whoever restarts it, or waits for it."""
