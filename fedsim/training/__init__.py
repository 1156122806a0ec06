"""Local training, the chain of defenses, and privacy budgets, without Flower."""
