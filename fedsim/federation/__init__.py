"""Flower: clients, the honest-but-curious server, strategies, secure aggregation."""
