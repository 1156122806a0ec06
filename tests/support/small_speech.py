"""A small speech task: four clients, a speaker each."""

from support.sequence_tasks import of_four

SMALL = {"name": "las", "encoder": 6, "attention": 6, "embedding": 6, "decoder": 12,
         "projection": 10}  # fmt: skip
TASK = {"speakers": 4, "utterances": 8, "longest": 30, "vocabulary": 64, "model": SMALL}


def scenario(**changes):
    """Four clients, a speaker each; tables are merged with these."""
    return of_four({"name": "speech", "test_examples": 3, **TASK}, 2, **changes)
