"""Both parts of "secagg+", which is Flower's SecAgg+ protocol on the message API.

Flower has SecAgg+ (after Bell et al., CCS 2020) as a workflow of its legacy server and a mod of
its clients. Here the workflow's stages run for one round: they send and mask, and the messages and
updates are those of the strategy and of fedsim's clients.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import FitIns, Parameters
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid

from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation.grid import UPDATE_KEY
from fedsim.federation.secure import ROUND_KEY, SECAGGPLUS_KEY, Plain, Round
from fedsim.federation.secure.maskedsum import Mean, Terms, agreed, check_steps, with_round
from fedsim.federation.secure.masking import reach
from fedsim.seeds import isolated

CLIPPING = 64.0
"""Values are quantised in [-64, 64], which holds weights, gradients and running statistics of
trained networks; with few clients the modulus then allows steps of 1e-7."""

MODULUS = 2**32
"""The largest modulus that Flower's workflow documents."""

STATE_KEY = "secaggplus_state"
"""Where Flower's mod keeps a client's keys between the stages."""


def quantisation(clients: int) -> int:
    """The number of levels of [-64, 64], such that the sum over all clients is below 2^32."""
    return int(MODULUS >> clients.bit_length())


def answer(
    message: Message, context: Context, train: Callable[[Message, Context], Plain]
) -> Message:
    """Run one stage of the client's part; the stage that collects masked vectors trains."""

    def call_next(message: Message, context: Context) -> Message:
        """Train, and reply in the format of Flower's legacy server."""
        plain = train(message, context)
        largest = float(np.abs(plain.values).max())
        if largest > CLIPPING:
            raise UpdateRefused(
                f"it holds {largest:.1e}, which SecAgg+ would clip: it takes values up to "
                f'{CLIPPING:g}. Use training.secure_aggregation = "masked-sum"'
            )
        return Message(
            RecordDict(
                {
                    "fitres.parameters": ArrayRecord({"0": Array(plain.values)}),
                    "fitres.num_examples": MetricRecord({"num_examples": plain.examples}),
                    "fitres.metrics": ConfigRecord(),
                    "fitres.status": ConfigRecord({"code": 0, "message": ""}),
                    UPDATE_KEY: plain.meaning,
                }
            ),
            reply_to=message,
        )

    record = message.content.config_records[SECAGGPLUS_KEY]
    stage = record.get("stage")
    parameters = message.content.config_records.get(ROUND_KEY)
    # Flower's mod rounds at random, and draws from numpy's global generator to do so.
    where = Round.read(parameters) if parameters else Round(0, 0, 0, 0, (), 0)
    try:
        with isolated(where.seed, "secagg+", where.round, where.client):
            reply = secaggplus_mod(message, context, call_next)
    except BaseException:
        context.state.config_records.pop(STATE_KEY, None)
        raise
    finally:
        if stage is not None:  # Flower's mod takes it out of a record that several clients share
            record["stage"] = stage
    if stage == "unmask":
        context.state.config_records.pop(STATE_KEY, None)
    return reply


def secagg_plus(terms: Terms) -> Mean:
    """Run the protocol for one round.

    Raises:
        ClientError: Too few clients are left.
    """
    seed, round, clients, messages = terms.seed, terms.round, terms.clients, terms.messages
    near, number = reach(len(messages)), len(messages)
    workflow = SecAggPlusWorkflow(
        num_shares=1.0 if 2 * near + 1 >= number else 2 * near + 1,
        reconstruction_threshold=2 / 3,
        max_weight=float(terms.most),
        clipping_range=CLIPPING,
        quantization_range=quantisation(number),
        modulus_range=MODULUS,
        timeout=terms.timeout,
    )
    tap = _Tap(terms)
    outcome = _Outcome(list(messages))
    context = LegacyContext(
        Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}),
        strategy=cast(Any, outcome),
    )
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round})
    context.state[MAIN_PARAMS_RECORD] = ArrayRecord()
    state = WorkflowState()
    stages = [
        ("setting up", workflow.setup_stage),
        ("sharing keys", workflow.share_keys_stage),
        ("collecting", workflow.collect_masked_vectors_stage),
        ("unmasking", workflow.unmask_stage),
    ]
    nodes: list[int] = []
    # The workflow shuffles the nodes with Python's global generator.
    with isolated(seed, "secagg+", round):
        for name, stage in stages:
            tap.collects = name == "collecting"
            if tap.collects:  # the strategy's messages in the place of the legacy server's
                for node, message in messages.items():
                    parameters = Round(seed, round, clients[node], number, (), terms.size)
                    state.nid_to_fitins[node] = with_round(message, parameters).content
            if name == "unmasking":  # who falls silent from here on is in the sum already
                nodes = sorted(state.active_node_ids, key=lambda node: clients[node])
                tap.failed = {}
            try:
                went_well = stage(tap.grid, context, state)
            except Exception as error:  # whatever a client's reply did to Flower's code
                raise ClientError(f"SecAgg+ broke off while {name}: {error!r}") from error
            if name in ("setting up", "sharing keys"):
                # Flower's last stage would otherwise request shares of the keys of clients that
                # never shared any.
                gone = state.sampled_node_ids - state.active_node_ids
                state.sampled_node_ids = state.sampled_node_ids - gone
                for neighbours in state.nid_to_neighbours.values():
                    neighbours -= gone
            if not went_well:
                raise ClientError(
                    f"SecAgg+ stopped while {name}: {len(state.active_node_ids)} of {number} "
                    f"clients are left, and each needs {state.threshold} of those that it shares "
                    "keys with, itself included"
                )
    meaning = agreed({node: tap.meanings[node] for node in nodes}, {})
    return Mean(tuple(nodes), outcome.values, outcome.examples, meaning)


@dataclass(slots=True, eq=False)
class _Outcome:
    """Stands in for a legacy strategy: selects the round's nodes, and keeps the mean."""

    nodes: list[int]
    values: Any = None
    examples: int = 0

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        nothing = FitIns(Parameters([], ""), {})
        return [(SimpleNamespace(node_id=node), nothing) for node in self.nodes]

    def aggregate_fit(self, round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        self.examples = sum(result.num_examples for _, result in results)
        (mean,) = results[0][1].parameters.tensors
        self.values = np.load(io.BytesIO(mean), allow_pickle=False)
        return None, {}


class _Tap:
    """Stands between the workflow and the Grid: sorts replies, and drops broken ones."""

    def __init__(self, terms: Terms) -> None:
        self.grid = cast(Grid, self)  # the one method of a Grid that the workflow uses
        self.meanings: dict[int, ConfigRecord] = {}
        self.collects = False
        self._terms, self.failed = terms, terms.failed

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        requests = sorted(messages, key=lambda m: m.metadata.dst_node_id)
        kept = []
        for reply in self._terms.grid.send_and_receive(requests, timeout=timeout):
            try:
                self._check(reply)
                kept.append(reply)
            except ClientError as reason:
                self.failed[reply.metadata.src_node_id] = str(reason)
        kept.sort(key=lambda reply: reply.metadata.src_node_id)
        if self.collects:
            agreed(self.meanings, self.failed)
            kept = [reply for reply in kept if reply.metadata.src_node_id not in self.failed]
        return kept

    def _check(self, reply: Message) -> None:
        if reply.has_error():
            raise ClientError(reply.error.reason or f"error code {reply.error.code}")
        if not self.collects:
            return
        try:
            records = reply.content.config_records
            masked = cast(list[bytes], records[SECAGGPLUS_KEY]["masked_params"])
            loaded = [np.load(io.BytesIO(part), allow_pickle=False) for part in masked]
            found = [(str(each.dtype), each.shape) for each in loaded]
            examples = reply.content.metric_records["fitres.num_examples"]["num_examples"]
            steps = records[UPDATE_KEY].get("steps", 1)
        except Exception as error:  # whatever a client put there
            raise UpdateRefused(f"its masked vector cannot be read: {error!r}") from error
        expected = [("int64", (1,)), ("int64", (self._terms.size,))]
        check_steps(steps)
        if found != expected:
            raise UpdateRefused(f"its masked vectors are {found}, expected {expected}")
        if not isinstance(examples, int) or not 1 <= examples <= self._terms.most:
            raise UpdateRefused(
                f"it claims {examples!r:.80} examples, expected 1 to {self._terms.most}"
            )
        self.meanings[reply.metadata.src_node_id] = records[UPDATE_KEY]
