"""Mistakes in a user's own plugins are said where it is loaded, and cost no other row."""

import pytest
from support.own_code import beside, fresh
from support.tiny import rows

from fedsim.engine.simulate import simulate
from fedsim.errors import PluginError
from fedsim.scenario import Scenario

MISTAKES = '''
from fedsim import Adversary, Defense, Knowledge, Reconstruction
from fedsim.metric import Measure, Metric

class Zero(Defense):
    """Sends zeros, or would if it were spelled rightly."""

    name = "zero"

    def protcet(self, update, context):
        return update

class Text(Adversary):
    """Needs a text."""

    name = "text"
    needs = "HEAD_GRADIENT"
    recovers = frozenset({"label_set"})

    def reconstruct(self, seen, job):
        return Reconstruction(label_set=frozenset())

class OneText(Text):
    """Recovers a text."""

    needs = Knowledge.GRADIENT
    recovers = "label_set"

class Of(Metric):
    """Reads what no attack claims."""

    name = "of"
    fields = ("label",)
    shown = Measure("Of")

    def compute(self, claimed, truth, spec):
        return 0.0

class Percent(Of):
    """Is shown in a way of its own."""

    name = "percent"
    fields = ("label_counts",)
    shown = Measure("Percent", kind="percent")

class Raising(Of):
    """Divides by zero."""

    name = "raising"
    fields = ("label_counts",)
    shown = Measure("Raising")

    def compute(self, claimed, truth, spec):
        return 1 / 0

class Exiting(Raising):
    """Ends its process."""

    name = "exiting"

    def compute(self, claimed, truth, spec):
        raise SystemExit(3)

class Nothing(Raising):
    """Returns nothing."""

    name = "nothing"

    def compute(self, claimed, truth, spec):
        return None
'''


def made(path):
    run = Scenario.load(path)
    return run.build_metrics(), run.build_defenses(), run.build_adversaries()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[[defenses]]\nname = "{}:Zero"', "neither prepare nor protect is written"),
        ('[[adversaries]]\nname = "{}:Text"', "needs is 'HEAD_GRADIENT': needs = Knowledge."),
        ('[[adversaries]]\nname = "{}:OneText"', "recovers is 'label_set': recovers = frozenset"),
        ('metrics = ["{}:Of"]', "fields names ['label'], which Reconstruction lacks"),
        ('metrics = ["{}:Percent"]', "the kind of shown is 'percent': use one of yes/no, share"),
    ],
    ids=["defense", "needs", "recovers", "fields", "kind"],
)
def test_a_class_that_would_do_nothing_is_refused(tmp_path, table, said):
    module = fresh()
    path = beside(tmp_path, table.format(module), **{module: MISTAKES})
    with pytest.raises(PluginError) as raised:
        made(path)
    assert said in str(raised.value)
    assert f"{module}:" in str(raised.value)


@pytest.mark.parametrize("name", ["Raising", "Exiting", "Nothing"])
def test_a_metric_that_raises_costs_no_other_value(tmp_path, name):
    module = fresh()
    text = f'''
metrics = ["{module}:{name}"]
[task]
name = "images"
data = "digits"
test_examples = 20
[training]
algorithm = "fedsgd"
rounds = 1
clients = 2
[threat]
isolation = "none"
[[adversaries]]
name = "llg"
[engine]
workers = 1
'''
    run = Scenario.load(beside(tmp_path, text, **{module: MISTAKES}))
    simulate(run, tmp_path / "run")
    found = rows(tmp_path / "run")
    assert {row["status"] for row in found} == {"ok"}
    values = {row["metric"]: row["value"] for row in found}
    assert values.pop(name.lower()) == ""
    assert all(values.values())
    assert all(f"the metric {name.lower()} has no value: " in row["error"] for row in found)
