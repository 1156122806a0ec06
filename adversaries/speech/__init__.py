"""Attacks on speech: what was said, how it sounded, and who spoke."""
