"""Run history: what became of each slot, copied out of Redis into the project's database, its pages and its pruning."""
