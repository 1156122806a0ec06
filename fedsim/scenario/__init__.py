"""Scenarios: TOML files that contain everything a run depends on.

    task, training, threat, defenses, adversaries, metrics, engine, sweep

Unknown keys are errors that name the nearest known one. `--set key=value` overrides a value by
its dotted key in the file: `--set training.lr=0.05 --set adversaries.1.iterations=50`.

files        finding and reading scenario files
dotted       dotted keys, and the names of a sweep's points
tables       the base class of a scenario's tables
settings     `[threat]`, `[record]`, `[engine]`, `[sinks]` and `[[adversaries]]`
training     `[training]`
schedules    learning rates by round
rounds       rounds by a word or a list: those attacked, and those evaluated
seeded       `seed`
paper        `[paper]`: the reproduced figure and its published numbers
devices      where clients and attacks compute
complaints   what contradicts itself
built        task, plugins and threat model, built once in each process
"""

import copy
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, cast

import tomli_w
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedsim.adversary import Adversary
from fedsim.defense import Defense, check_declared, contradictions
from fedsim.errors import ScenarioError, did_you_mean
from fedsim.knowledge import Knowledge
from fedsim.metric import Metric
from fedsim.plugin import find, make, validated
from fedsim.references import is_reference, look_in
from fedsim.scenario.complaints import complaints
from fedsim.scenario.dotted import assign, set_by, short, unlisted
from fedsim.scenario.files import locate, read_table, scenario_names, search_dirs
from fedsim.scenario.paper import Paper, scaled
from fedsim.scenario.seeded import Seeded
from fedsim.scenario.settings import (
    AttackPlan,
    Engine,
    PlainName,
    Record,
    Sinks,
    Sweep,
    Threat,
    Training,
    default_strategy,
)
from fedsim.task import RUN_FIELDS, Task, named_folder

__all__ = ["AttackPlan", "Scenario", "locate", "read_table", "scenario_names"]


class Scenario(Seeded):
    """All settings of a run, with defaults filled in and plugins looked up."""

    name: PlainName = "scenario"
    description: str = ""
    task: dict[str, Any] = Field(default={"name": "images"})
    training: Training = Training()
    threat: Threat = Threat()
    defenses: list[dict[str, Any]] = Field(default=[])
    adversaries: list[AttackPlan] = Field(default=[])
    record: Record = Record()
    engine: Engine = Engine()
    sinks: Sinks = Sinks()
    metrics: list[str] = Field(default=[])
    """Metrics in addition to the installed ones, each as "module:Class"."""
    sweep: Sweep = Field(default={})
    paper: Paper | None = None
    data_dir: str = ""
    search_dirs: list[str] = Field(default=[])
    """Folders in which "module:name" and relative paths of data are looked up, set by `load`."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        overrides: Iterable[str] = (),
        *,
        data: str | Path | None = None,
        scale: str = "smoke",
        trust: bool = False,
    ) -> "Scenario":
        """Read a scenario by name (one that `fedsim list scenarios` shows) or by path.

        Args:
            source: The name or the path.
            overrides: `key=value` strings, values as in TOML, bare words as strings.
            data: Folder where local data sets are looked up; by default that of the
                file if it is there, otherwise what `FEDSIM_DATA` names.
            scale: "smoke" (the file as written) or "paper" (with the changes of `paper.scale`).
            trust: Whether to import code that a run folder's scenario names as "module:name".

        Raises:
            ScenarioError: There is no such scenario, it is invalid, or it comes from a run folder
                and names code, but is not trusted.
        """
        path = locate(source)
        table = read_table(path)
        table.setdefault("name", path.stem)
        for key, value in scaled(table, scale).items():
            assign(table, key, value)
        if isinstance(overrides, str):
            raise ScenarioError(
                f"overrides: found the text {overrides!r:.80}; expected a list, such as "
                '["training.rounds=2"]'
            )
        for override in overrides:
            set_by(table, override)
        own = table.get("data_dir")
        stays = not data and own and Path(str(own)).is_dir()
        if not stays and (folder := named_folder(data)):
            table["data_dir"] = str(folder)
        table["search_dirs"] = search_dirs(table, path.resolve(), trust=trust)
        return cls.parse(table)

    @field_validator("adversaries", "defenses", mode="before")
    @classmethod
    def _listed(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, list):
            name = str(info.field_name)
            raise ValueError(f"expected [[{name}]] tables{unlisted(name, value)}")
        return value

    @model_validator(mode="after")
    def _look_in_its_folders(self) -> Self:
        look_in(self.search_dirs)  # also in each worker that receives the scenario
        for plan in self.adversaries:
            plan.under(self.threat)
        return self

    @classmethod
    def parse(cls, table: Mapping[str, Any], *, task: Task | None = None) -> "Scenario":
        """Make a scenario from nested tables; raise `ScenarioError` with a line for each error.

        Args:
            table: The tables.
            task: What is trained, if it is another task than the scenario's, such as that of
                another Flower project: whether adversaries suit it is not checked here.
        """
        scenario = validated(cls, copy.deepcopy(dict(table)), "")
        scenario.check(task)
        return scenario

    def check(self, task: Task | None = None) -> None:
        """Check all that can be checked before training; raise `ScenarioError` with the errors.

        Args:
            task: As for `parse`.
        """
        found = complaints(self.training, self.threat, self.adversaries, self.sweep, self.paper)
        if found:
            raise ScenarioError("\n".join(found))
        self.knowledge()
        own = self.build_task()
        self._check_defenses()
        unsuited = [
            f"adversaries.{i}: {text}"
            for i, (_, _, adversary) in enumerate(self.build_adversaries())
            for text in adversary.unsuited(own.spec_type, own.name)
            if task is None
        ]
        if unsuited:
            raise ScenarioError("\n".join(unsuited))
        self.build_metrics()
        self.denials()

    def _check_defenses(self) -> None:
        """Check that defenses exist, do not contradict each other, and name existing clients."""
        defenses = self.build_defenses()
        for defense in defenses:
            check_declared(defense)
        found = contradictions(defenses)
        for i, defense in enumerate(defenses):
            for client in () if defense.clients == "all" else defense.clients:
                if client >= self.training.clients:
                    found.append(
                        f"defenses.{i} ({defense.name}).clients: there is no client {client}; "
                        f"clients go from 0 to {self.training.clients - 1}"
                    )
        if found:
            raise ScenarioError("\n".join(found))

    @property
    def keeps(self) -> str:
        """Which interceptions stay in the run folder: "nothing", "attacked" or "all"."""
        return "all" if self.threat.record else self.record.keep

    def knowledge(self) -> Knowledge:
        """Return the knowledge that the threat model grants."""
        return Knowledge.parse(self.threat.grants)

    def build_task(self) -> Task:
        """Make the task with its settings, seed and number of clients, without loading data."""
        settings = dict(self.task)
        name = settings.pop("name", "images")
        fields = set(find("tasks", name).model_fields)
        known = fields - RUN_FIELDS
        if unknown := [key for key in settings if key not in known]:
            raise ScenarioError(
                "\n".join(f"task.{key}: unknown key. {did_you_mean(key, known)}" for key in unknown)
            )
        settings |= {
            "seed": self.seed,
            "clients": self.training.clients,
        }
        if self.data_dir:
            settings["folder"] = Path(self.data_dir)
        if "batching" in fields:
            settings["batching"] = self.training.batching
        elif self.training.batching != "draw":
            raise ScenarioError(
                f"training.batching = \"{self.training.batching}\": task '{name}' composes its "
                "batches itself. Leave it out, or give the task a field `batching` that it follows"
            )
        return cast(Task, make("tasks", name, settings, "task"))

    def build_defenses(self) -> list[Defense]:
        """Make the clients' defenses, in listed order."""
        made = []
        for i, entry in enumerate(self.defenses):
            settings = dict(entry)
            if "name" not in settings:
                raise ScenarioError(f"defenses.{i}.name: missing; it names the defense")
            name = settings.pop("name")
            made.append(cast(Defense, make("defenses", name, settings, f"defenses.{i} ({name})")))
        return made

    def build_adversaries(self) -> list[tuple[str, AttackPlan, Adversary]]:
        """Make the adversaries: tuples (label, plan, adversary) in listed order."""
        return [
            (plan.title, plan, plan.adversary(f"adversaries.{i} ({plan.name})"))
            for i, plan in enumerate(self.adversaries)
        ]

    def build_metrics(self) -> list[Metric]:
        """Make the scenario's own metrics, which are measured in addition to installed ones."""
        if registered := [name for name in self.metrics if not is_reference(name)]:
            raise ScenarioError(
                f"metrics: expected module:Class; found {registered[0]!r}. Metrics that are "
                "installed are measured without being named"
            )
        return [
            cast(Metric, make("metrics", name, {}, f"metrics.{i} ({name})"))
            for i, name in enumerate(self.metrics)
        ]

    def denials(self) -> dict[str, Knowledge]:
        """Return by adversary label the knowledge that it needs and the threat model withholds."""
        granted = self.knowledge()
        missing = {
            label: adversary.requires() & ~granted
            for label, _, adversary in self.build_adversaries()
        }
        return {label: lacking for label, lacking in missing.items() if lacking}

    def points(self) -> dict[str, "Scenario"]:
        """Return a scenario for each point of the sweep, by a name such as `training.lr=0.1`."""
        if not self.sweep:
            return {"": self}
        found = {}
        for name, chosen in self.combinations().items():
            table = self.to_dict() | {"sweep": {}, "paper": None}  # that of the whole sweep
            training = table["training"]
            if training["strategy"] == default_strategy(training["algorithm"]):
                del training["strategy"]  # a swept algorithm brings its own default
            if "training.local_epochs" in chosen and training.get("local_steps") == 1:
                del training["local_steps"]  # the default, which a file of a run states
            if "seed" in chosen:  # a repetition, whose attacks draw anew as well
                table["threat"]["seed"] += self.sweep["seed"].index(chosen["seed"])
            for key, value in chosen.items():
                assign(table, key, value)
            found[name] = Scenario.parse(table)
        return found

    def over_seeds(self, seeds: Iterable[int]) -> "Scenario":
        """Return the scenario with these seeds as the first key of its sweep, without `[paper]`.

        Raises:
            ScenarioError: The sweep has seeds of its own, or the seed is "random".
        """
        if "seed" in self.sweep:
            raise ScenarioError(
                f"sweep.seed = {self.sweep['seed']}: the scenario lists its seeds already. Leave "
                "out either these or the number of seeds"
            )
        self.refuse_drawn("repetitions (--seeds) have seeds that follow each other")
        sweep = {"seed": list(seeds), **self.sweep}
        return self.model_copy(update={"sweep": sweep, "paper": None})

    def combinations(self) -> dict[str, dict[str, Any]]:
        """Return the swept values of each point, by the point's name."""
        found = {}
        for values in itertools.product(*self.sweep.values()):
            chosen = dict(zip(self.sweep, values, strict=True))
            found[",".join(f"{key}={short(value)}" for key, value in chosen.items())] = chosen
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as nested tables, which `parse` reads back."""
        table = self.model_dump(exclude_none=True)
        for key in ("metrics", "search_dirs", "sinks"):  # left out if empty, as in most scenarios
            if not table[key]:
                del table[key]
        if not self.threat.probes:
            del table["threat"]["probes"]
        for entry in table["adversaries"]:
            entry |= entry.pop("settings")
        return table

    def to_toml(self) -> str:
        """Return the scenario as TOML, with all defaults."""
        return tomli_w.dumps(self.to_dict())
