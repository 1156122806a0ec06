"""Attacks on labels: which classes a batch held, and how often."""
