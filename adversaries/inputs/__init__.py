"""Attacks on inputs: the images, or rows of a table, behind a gradient."""
