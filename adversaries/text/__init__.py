"""Attacks on text: the words behind the gradient of a language model."""
