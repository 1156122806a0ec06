"""The honest-but-curious server, a wrapper around any Flower strategy.

The server is honest: the wrapped strategy decides what is sent and how it is aggregated, bit for
bit. It is curious: it keeps what it sent, and passes what it receives to a campaign of attacks.
"""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedsim.adversary import Adversary
from fedsim.attacking.audit import audit_campaign
from fedsim.attacking.campaign import Campaign, Clients
from fedsim.diagnosis.diagnose import diagnose_end
from fedsim.diagnosis.foreseen import caution
from fedsim.errors import ClientError, FedsimError, ScenarioError
from fedsim.federation.audit_log import audit_observer, log_left, log_results
from fedsim.federation.contents import only_record
from fedsim.federation.fedsgd import FedSGD
from fedsim.federation.identities import Identities
from fedsim.federation.project import WatchedProject
from fedsim.federation.receiver import Receiver
from fedsim.federation.replies import Names, check_metrics, failures, names_of, outnumbered, reason
from fedsim.federation.replies import read_update as read_update
from fedsim.federation.senders import by_node
from fedsim.federation.spool import Spool, in_groups
from fedsim.federation.wrappers import Wrapper, weighted_by
from fedsim.inert import line
from fedsim.plugin import check_objects
from fedsim.records import Interception
from fedsim.seeds import held
from fedsim.task import Task
from fedsim.victim import Loss

__all__ = ["FedSGD", "HonestButCurious", "read_update"]


class HonestButCurious(Wrapper):
    """Runs any Flower strategy unchanged, and attacks every update that it receives.

        strategy = HonestButCurious(FedAvg(...), adversaries=[LLG()], task=Images(clients=10))

    Args:
        strategy: The strategy to wrap. This wrapper goes outermost, because server-side
            differential privacy, for example, changes replies in place.
        adversaries: The adversaries.
        task: What the clients train; models and truth are derived from it.
        model: Makes the clients' model, such as its class, in place of a task: the clients run
            under `fedsim.watch` and show what they train on by `fedsim.reveal`.
        loss: The clients' training loss, if they have a model and not cross-entropy.
        example: A batch of inputs and labels such as the clients', for a model whose clients reveal
            none on this machine.
        campaign: A campaign, instead of adversaries, task and settings.
        on_failure: What happens to a client's error or broken update, beside its recorded rows:
            "pass" leaves it to the strategy, "drop" keeps it from the strategy, "stop" raises
            `ClientError`.
        defer: Whether all attacks are made after training, in place of the end of each round. What
            they need is kept in the run folder until then.
        budget_s: Seconds for attacks at the end of a round. No attack begins after them; those that
            are left are made in later rounds, or after training. The rows are the same.
        **settings: Tables of a scenario (seed=7, threat={"grants": "white-box", "victims": 2},
            training={"batch_size": 8}), and `out`, the run folder.
    """

    def __init__(  # noqa: PLR0913 - each argument is something that the user knows
        self,
        strategy: Strategy,
        adversaries: Sequence[Adversary] = (),
        *,
        task: Task | None = None,
        model: Callable[[], nn.Module] | None = None,
        loss: Loss | None = None,
        example: Sequence[Any] | Mapping[str, Any] | None = None,
        campaign: Campaign | None = None,
        on_failure: Literal["pass", "drop", "stop"] = "pass",
        defer: bool = False,
        budget_s: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(strategy)
        check_objects("adversaries", adversaries)
        self._owned = campaign is None
        self._project: WatchedProject | None = None
        self._campaign = campaign
        if campaign is not None and (defer or budget_s is not None):
            raise ScenarioError("a campaign has its own executor: leave out defer= and budget_s=")
        if budget_s is not None and not (isinstance(budget_s, int | float) and budget_s >= 0):
            raise ScenarioError(f"budget_s is {budget_s!r:.80}; expected seconds, from 0 on")
        attacks: dict[str, Any] = {
            "seconds": 0.0 if defer else budget_s,
            "observer": audit_observer(),
        }
        if model is None and (loss is not None or example is not None):
            raise ScenarioError("loss= and example= belong to a model: give model=, too")
        if model is not None and (isinstance(model, nn.Module) or not callable(model)):
            raise ScenarioError(
                f"model is {type(model).__name__} {model!r:.80}; expected what makes a model, such "
                "as its class or a function without arguments"
            )
        if loss is not None and not callable(loss):
            raise ScenarioError(
                f"loss is {loss!r:.80}; expected a function of the model, its inputs and the "
                "labels that returns a scalar tensor"
            )
        if loss is not None:
            _check_signature(loss)
        if model is not None and (task is not None or campaign is not None):
            other = "a task" if task is not None else "a campaign"
            raise ScenarioError(f"model= and {other} say both what is trained; leave one out")
        if model is not None:
            self._project = WatchedProject(model, loss, example, adversaries, settings, attacks)
        elif campaign is None:
            self._campaign = audit_campaign(adversaries, task, **attacks, **settings)
        self.on_failure = on_failure
        self.metrics: dict[str, float] = {}
        self._sent: dict[int, tuple[ArrayRecord, ConfigRecord]] = {}
        self._asked: Sequence[Message] = ()
        self._identities = Identities()
        self._seeded = self._cautioned = False
        self._noted: set[int] = set()
        self._receiver = Receiver(self._identities, weighted_by(strategy))
        self.taken_part = self._receiver.taken_part

    @property
    def campaign(self) -> Campaign:
        """The attacks; with `model`, they are there once the first replies are."""
        if self._campaign is None:
            raise FedsimError("no reply yet: the attacks begin with the first round's replies")
        return self._campaign

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages; keeps what each node is sent."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked, self._seeded = messages, getattr(grid, "seeded", False)
        stated = self._project or self.campaign.scenario
        self._identities.begin_round(grid, stated.training.clients)
        self._sent, contents = {}, dict[int, tuple[ArrayRecord, ConfigRecord]]()
        for message in messages:
            content = message.content
            if id(content) not in contents:  # most strategies send all clients the same
                sent = only_record(content, ArrayRecord, self.strategy)
                settings = only_record(content, ConfigRecord, self.strategy)
                contents[id(content)] = sent, settings.copy()
            self._sent[message.metadata.dst_node_id] = contents[id(content)]
        if self._project is not None:
            records = {node: arrays for node, (arrays, _) in self._sent.items()}
            self._project.sends(server_round, records)
        if self._campaign is not None:
            self._caution(self._campaign)
            self._campaign.observer("training", round=server_round, clients=len(messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Intercept the replies, then aggregate them as the strategy does.

        Replies beyond a limit of memory wait on disk; see `fedsim.federation.spool`.
        """
        kept: list[Message] = []
        if self._campaign is None and self._project is not None:
            replies = list(replies)
            self._campaign = self._project.begin(replies, len(self._identities))
            if self._campaign is None:  # nobody knows the inputs yet
                return self._aggregated(server_round, replies)
        self._caution(self.campaign)
        if not self._identities.known:  # such a Grid may return replies in any order
            kept = list(by_node(self._asked, replies))
            replies = sorted(kept, key=lambda r: self._number(r.metadata.src_node_id))
        self._receiver.begin_round(self._sent)
        spool = Spool(self.campaign.recording)
        interceptions, failed = list[Interception](), dict[int, str]()
        names: dict[Clients, Names] = {}
        with held() if self._seeded else contextlib.nullcontext():
            for reply in in_groups(replies, self._sent.values()) if self._seeded else replies:
                if self._identities.known:
                    kept.append(reply)
                clients: Clients = ()
                try:
                    clients = self._receiver.clients(reply, self.campaign.scenario.training)
                    one = self._receiver.interception(
                        server_round, reply, clients, self.campaign, self._project
                    )
                    if self.on_failure == "drop":
                        check_metrics(reply)
                        names[clients] = names_of(reply)
                except ClientError as error:
                    clients = clients or (self._number(reply.metadata.src_node_id),)
                    failed |= dict.fromkeys(clients, f"{type(error).__name__}: {error}")
                    if self._project is not None:
                        self._project.refuse(reply)
                else:
                    if self._project is not None:
                        one = self._project.seen(reply, one)
                    interceptions.append(spool.take(reply, one))
                if not reply.has_error():
                    self.taken_part.update(clients)
        odd = outnumbered(names)
        interceptions = [one for one in interceptions if one.clients not in odd]
        failed |= {client: why for clients, why in odd.items() for client in clients}
        answered = {*failed, *(client for one in interceptions for client in one.clients)}
        failed |= {
            client: "ClientError: no reply"
            for client in map(self._number, self._sent)
            if client not in answered
        }
        self.campaign.intercept(server_round, interceptions, failed)
        if self._project is not None:
            self._project.keep(self.campaign, server_round)
        if failed:
            self._note_failures(server_round, failed)
        if failed and self.on_failure != "pass":
            if self.on_failure == "stop":
                self.campaign.collect(wait=True)
                raise self._stopped(f"round {server_round}", failed, len(self._sent))
            kept = [r for r in kept if self._number(r.metadata.src_node_id) not in failed]
        return self._aggregated(server_round, kept)

    def _aggregated(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        aggregated, metrics = super().aggregate_train(server_round, replies)
        self.metrics = _scalars(metrics)
        return aggregated, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does; records the attacks that have ended."""
        if self._campaign is not None and self.on_failure != "pass":
            replies = [*replies]
            failed = {
                self._number(reply.metadata.src_node_id): f"ClientError: {reason(reply)}"
                for reply in replies
                if reply.has_error()
            }
            if failed and self.on_failure == "stop":
                self.campaign.collect(wait=True)
                raise self._stopped(f"evaluation of round {server_round}", failed, len(replies))
            if failed:
                text = f"the evaluation of round {server_round} is without {failures(failed)}"
                self.campaign.observer("caution", text=text)
        metrics = super().aggregate_evaluate(server_round, replies)
        self.metrics |= {f"client_{name}": value for name, value in _scalars(metrics).items()}
        if self._campaign is not None:
            self._campaign.collect()
        return metrics

    def start(self, *args: Any, **settings: Any) -> Result:
        """Train as Flower does; a campaign of its own ends with a report."""
        try:
            result = super().start(*args, **settings)
        except BaseException:
            if self._owned and self._campaign is not None:
                left = self.campaign.executor.pending
                self.campaign.cancel()
                with contextlib.suppress(FedsimError):
                    self._finish(self._campaign, interrupted=True)
                if left:
                    log_left(self._campaign.ledger.folder, left, self._project is not None)
            raise
        if self._owned and self._campaign is not None:
            self._finish(self._campaign)
        elif self._owned:
            warnings.warn("no client revealed an example: nothing was attacked", stacklevel=2)
        return result

    def _stopped(self, where: str, failed: Mapping[int, str], of: int) -> ClientError:
        """The error that names the failed clients, and says how to go on without them."""
        named = "\n".join(f"  client {c}: {line(why)}" for c, why in sorted(failed.items()))
        setting = "" if self._owned else "training."
        return ClientError(
            f"{where}: {len(failed)} of {of} clients failed\n{named}\n"
            f'To go on without such clients: {setting}on_failure = "drop"'
        )

    def _caution(self, campaign: Campaign) -> None:
        """Log once what speaks against the attacks of somebody's own project."""
        if self._owned and not self._cautioned:
            self._cautioned = True
            caution(campaign.ledger.folder, campaign.built, campaign.observer)

    def _note_failures(self, round: int, failed: Mapping[int, str]) -> None:
        """Log why clients' updates cannot be used; warn of a client the first time only."""
        failed = dict(sorted(failed.items()))
        self.campaign.observer("refused", round=round, clients=failed)
        new = {client: why for client, why in failed.items() if client not in self._noted}
        self._noted |= new.keys()
        if new and self.on_failure != "stop":  # which names them in its error
            left = "is trained without" if self.on_failure == "drop" else "has no attack on"
            self.campaign.observer("caution", text=f"round {round} {left} {failures(new)}")

    def _finish(self, campaign: Campaign, *, interrupted: bool = False) -> None:
        folder, built = campaign.ledger.folder, campaign.built
        why = functools.partial(
            diagnose_end,
            folder,
            built.scenario,
            campaign.observer,
            built.adversaries,
            task=built.task,
        )
        report = campaign.finish() if interrupted else campaign.finish(why)
        if self._project is not None:
            self._project.close(campaign)
        log_results(report)

    def _number(self, node: int) -> int:
        return self._identities.client(node)


def _check_signature(loss: Loss) -> None:
    """Raise `ScenarioError` for a loss that cannot be called as attacks call it."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # a function of another language
        return
    try:
        signature.bind("module", "inputs", "target", lengths=None, at="input")
    except TypeError as error:
        raise ScenarioError(
            f"loss takes {signature}, expected (module, inputs, target, lengths=None, "
            "at='input'), such as: "
            "def loss(module, inputs, target, **_): return mse_loss(module(inputs), target)"
        ) from error


def _scalars(metrics: MetricRecord | None) -> dict[str, float]:
    return {k: float(v) for k, v in (metrics or {}).items() if isinstance(v, int | float)}
