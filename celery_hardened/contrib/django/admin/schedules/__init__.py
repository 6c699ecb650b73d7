"""Periodic tasks: the list, what can be done with them, their form and the policy in it."""
