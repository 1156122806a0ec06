"""A small text task: four clients, and a model of a few thousand weights."""

from support.sequence_tasks import of_four

from fedsim.tasks.text import Text

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip


def model(config="bert", settings=SMALL, **more):
    """The table of a model of transformers."""
    return {"name": "transformers", "config": config, "settings": settings, **more}


TASK = {"vocabulary": 600, "model": model()}


def small(**settings):
    """The task; settings are replaced by these."""
    return Text(**{"seed": 3, "clients": 4, **TASK, **settings})


def scenario(**changes):
    """Four clients; tables are merged with these."""
    return of_four({"name": "text", "test_examples": 8, **TASK}, 3, **changes)
