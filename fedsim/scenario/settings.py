"""The tables `[threat]`, `[record]`, `[engine]`, `[sinks]` and `[[adversaries]]` of a scenario."""

import re
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from fedsim.adversary import Adversary
from fedsim.errors import ScenarioError
from fedsim.isolation import MEMORY_MB, Isolation, isolated, isolates
from fedsim.plugin import checked_title, make, title
from fedsim.references import is_reference
from fedsim.scenario.rounds import Rounds as Rounds
from fedsim.scenario.tables import PlainName as PlainName
from fedsim.scenario.tables import Table as Table
from fedsim.scenario.tables import plain
from fedsim.scenario.training import Protocol as Protocol
from fedsim.scenario.training import Training as Training
from fedsim.scenario.training import default_strategy as default_strategy


def _whom(value: Any) -> Any:
    listed = isinstance(value, list) and all(type(number) is int for number in value)
    counted = type(value) is int and value >= 1
    if value not in ("all", None) and not listed and not counted:
        raise ValueError("expected 'all', a number of at least 1, or a list of client numbers")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("expected 'auto', 'cpu', 'cuda', or one GPU such as 'cuda:1'")
    return value


Victims = Annotated[Literal["all"] | int | list[int], BeforeValidator(_whom)]
Workers = Literal["auto"] | Annotated[int, Field(ge=1)]


class Probes(Table):
    """One `[[threat.probes]]` table: updates of a client that are computed for attacks, not sent.

    Their batches are the same in every attacked round, and the global model is that round's.
    """

    client: int = Field(ge=0)
    """The client."""

    batch_size: int = Field(default=1, ge=1)
    """Number of examples in a local batch."""

    updates: int = Field(default=1, ge=1)
    """Number of probes, each with batches of its own."""


class Threat(Table):
    """The `[threat]` table: what the curious server knows, and which updates it attacks."""

    grants: str | list[str] = "gradients"
    """Knowledge of the adversaries: a preset, or a list of names of knowledge."""

    rounds: Rounds = "all"
    """Rounds that are attacked: "all"; "log" (1, 2, 4, 8, ... and the last); "every 10" (1, 11, 21,
    ... and the last); or a list of them."""

    victims: Victims = "all"
    """Updates attacked in each round: "all", a number drawn by the seed, or a list of clients."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the adversaries' random numbers. They do not follow the run's seed, from which an
    adversary could compute the clients' batches and the noise of defenses."""

    follow: list[int] = Field(default=[])
    """Clients that take part in every round."""

    probes: list[Probes] = Field(default=[])
    """Updates that are computed on each attacked round's global model, and attacked as well."""

    timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Time limit of an attack, in seconds for each victim."""

    isolation: Isolation = "auto"
    """Whether attacks run in processes of their own, behind walls: "process"; "none"; "auto": those
    of adversaries that are not built in do."""

    memory_mb: int = Field(default=MEMORY_MB, ge=256)
    """Memory that an attack in a process of its own may use, in MiB, beyond what it is shown."""

    record: bool = False
    """Whether every interception is kept in the run folder, as with record.keep = "all"."""


class Record(Table):
    """The `[record]` table: which interceptions stay in the run folder, for later attacks."""

    keep: Literal["nothing", "attacked", "all"] = "attacked"
    """Interceptions that are kept: "nothing"; what is "attacked", with the history that these
    attacks were shown; or "all"."""

    max_bytes: int = Field(default=2 * 2**30, ge=0)
    """Largest size of the kept files of a run, in bytes; those beyond it are left out."""

    shared: bool = False
    """Whether the run folder has the usual permissions (those of the umask), and not 0700, and
    0600 for its files, by which its owner alone can read it."""


class Engine(Table):
    """The `[engine]` table: where clients and attacks run."""

    name: Literal["auto", "inline", "ray", "flower"] = "auto"
    """Engine; "auto" is "inline" for one worker and "ray" for several."""

    workers: Workers = "auto"
    """Number of clients trained at the same time by Ray or Flower; "auto": one for each CPU core,
    but at most one for each client of a round. Inline trains one after the other."""

    attack_workers: Workers = "auto"
    """Number of attacks run at the same time by Ray; "auto": as many as workers."""

    device: Annotated[str, AfterValidator(_device)] = "auto"
    """Where clients train and attacks compute: "cpu", "cuda" or "cuda:1"; "auto" is a GPU if
    PyTorch finds one. If GPUs are reserved below, "auto" is a GPU only for what reserves some."""

    vectorize: Literal["auto"] | Annotated[int, Field(ge=0)] = 0
    """Number of clients that a worker trains at once, as one batch of models, which is faster on a
    GPU; 0: one after the other; "auto": as many as the GPU has memory for, 0 on a CPU. The updates
    differ by rounding."""

    deterministic: bool = True
    """Whether GPUs sum in the same order each time, as CPUs do: cuDNN and PyTorch then take slower
    algorithms, and PyTorch warns where it has none."""

    compile: bool = False
    """Whether dlg, inverting-gradients and repeated-gradients compile their objective and its
    gradient by torch.compile, which takes about a minute. The results differ by rounding."""

    cpus_per_client: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """CPUs that Ray reserves for a worker."""

    gpus_per_client: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs, or a share of one, that Ray reserves for a worker; 0: an equal share of those there
    are, if clients train on GPUs."""

    gpus_per_attack: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs, or a share of one, that Ray reserves for an attack worker; 0: an equal share of those
    there are, if attacks compute on GPUs."""

    address: str = ""
    """Address of an existing Ray cluster to join; a new one is started if empty."""

    place_timeout: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Seconds that workers wait for a place on a node of Ray's: if then no client worker has one,
    or no attack worker, the run ends; if some have one, it goes on with these."""


class TensorBoardSink(Table):
    """The `[sinks.tensorboard]` table: curves of the run as TensorBoard's event files."""

    folder: str = ""
    """Folder in which the run gets a folder of its name; `tensorboard` in the run folder if
    empty."""


class MLflowSink(Table):
    """The `[sinks.mlflow]` table: curves of the run as a run of MLflow."""

    uri: str = ""
    """Address of the tracking server or database; MLflow's own default if empty."""

    experiment: str = Field(default="fedsim", min_length=1)
    """The experiment, which is made if there is none of that name."""


class Sinks(Table):
    """The `[sinks]` table: where curves go while a run goes on, in addition to the run folder."""

    tensorboard: TensorBoardSink | None = None
    """TensorBoard."""

    mlflow: MLflowSink | None = None
    """MLflow."""


class AttackPlan(Table):
    """One `[[adversaries]]` table: an adversary with its settings, and the plan of its attacks.

    `victims`, `rounds` and `timeout` are those of `[threat]` if left out.
    """

    name: str
    """The name of an adversary, or "module:Class"."""

    label: Annotated[str, AfterValidator(lambda text: text and plain(text))] = ""
    """Name in the findings, which distinguishes two settings of one adversary."""

    victims: Victims | None = None
    """Updates that it attacks in each round."""

    rounds: Rounds | None = None
    """Rounds that it attacks."""

    budget: int | None = Field(default=None, ge=1)
    """Largest number of iterations of an attack, restarts included."""

    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Time limit of an attack, in seconds for each victim."""

    settings: dict[str, Any] = Field(default={})
    """The adversary's own settings."""

    _threat: Threat = PrivateAttr(default=Threat())
    """The scenario's `[threat]` table."""

    _declared: str = PrivateAttr(default="")
    """The name that a class declares."""

    @model_validator(mode="before")
    @classmethod
    def _own_settings(cls, values: Any) -> Any:
        """Move the keys that are the adversary's own into `settings`."""
        if not isinstance(values, dict) or not isinstance(values.get("settings", {}), dict):
            return values
        plan = {key: value for key, value in values.items() if key in cls.model_fields}
        own = {key: value for key, value in values.items() if key not in plan}
        return {**plan, "settings": {**plan.get("settings", {}), **own}}

    @property
    def title(self) -> str:
        """Name in tables: the label, or the adversary's name without one."""
        return self.label or self.declared

    @property
    def declared(self) -> str:
        """The adversary's registered name; for a reference, the name that its class declares."""
        if not is_reference(self.name):
            return self.name
        if not self._isolated:
            return title("adversaries", self.name)
        if not self._declared:
            try:
                self._declared = checked_title(self.name, self.adversary().name)
            except ScenarioError:  # told with the place of its table when it is made
                return self.name.rpartition(":")[2]
        return self._declared

    @property
    def _isolated(self) -> bool:
        return isolates(self._threat.isolation, self.name, self.settings)

    def under(self, threat: Threat) -> None:
        """Tell it the scenario's `[threat]` table, which says whether its module is imported."""
        self._threat = threat

    def adversary(self, where: str = "") -> Adversary:
        """Make the adversary with its settings.

        Args:
            where: Place of its table in the scenario, for messages.
        """
        if self._isolated:
            limit = self._threat.memory_mb
            return isolated(self.name, self.settings, where, memory_mb=limit)
        made = cast(Adversary, make("adversaries", self.name, dict(self.settings), where))
        made.parts(where)  # so that an error in their settings names its place
        return made


def _quoted(value: Any) -> Any:
    for key, options in value.items() if isinstance(value, dict) else ():
        if isinstance(options, dict):
            dotted = ".".join([key, *list(options)[:1]]).replace('"', "")
            raise ValueError(f'a key of the sweep goes in quotes, such as "{dotted}" = [...]')
    return value


Sweep = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], BeforeValidator(_quoted)]
"""The values of each key of a sweep, by its dotted path."""
