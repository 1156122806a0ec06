"""Attacks on interceptions: choice of victims, one attack, its time limit and its progress."""
