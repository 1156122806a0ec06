"""A run folder in Python: its tables, tensors and plots, for notebooks and scripts."""
