"""Attacks on speech that recover transcripts, the features of utterances, and speakers."""
