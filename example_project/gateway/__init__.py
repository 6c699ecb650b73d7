"""A payment provider, simulated: a process, a ledger and an API of its own. Nothing here knows the shop."""
