"""Local training on a client, and what its defenses have spent; free of Flower."""
