"""Label inference attacks: which classes a batch contains, and how often."""
