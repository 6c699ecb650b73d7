"""Which workers there are, and what each last said of itself: kept in Redis for who asks, never asked of workers."""
