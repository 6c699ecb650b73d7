"""What the tests stand on: private servers, supervised processes, faults."""
