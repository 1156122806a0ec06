"""Attacks on what was intercepted: whom to attack, one attack, its time limit and its progress."""
