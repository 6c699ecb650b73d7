"""A Django app as a shop has one: what tests write into its databases."""
