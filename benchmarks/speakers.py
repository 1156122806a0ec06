"""Speakers named from reconstructions, beside those named from the utterances themselves.

    python benchmarks/speakers.py [speakers] [--set key=value ...] [--data DIR] [--rounds 1]

Runs the scenario's `speaker-inference` on the gradient of the untrained model at every client, in
so many rounds, and prints chance, the attack, and the ceiling: what the same encoder says of the
original frames, which no attack gets to see. Means over all updates; an attack that refuses names
nobody. The seconds of the first update, which trains the encoder, and the mean of the others'.
"""

import argparse
import os
import time
from dataclasses import replace

from adversaries import SpeakerInference
from fedsim.adversary import Job
from fedsim.metrics import applicable, baselines
from fedsim.records import Interception, Reconstruction, Update
from fedsim.scenario import Scenario
from fedsim.seeds import isolated, torch_generator
from fedsim.threat import ThreatModel


def main() -> None:
    """Attack every client, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("scenario", nargs="?", default="speakers")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    scenario = Scenario.load(options.scenario, options.overrides, data=options.data)
    task, settings = scenario.build_task(), scenario.training
    found = [one for _, _, one in scenario.build_adversaries() if one.name == SpeakerInference.name]
    if not found:
        parser.error(f"scenario '{options.scenario}' has no adversary '{SpeakerInference.name}'")
    attack = found[0]
    assert isinstance(attack, SpeakerInference)
    threat = ThreatModel(scenario.knowledge(), task)
    metrics = applicable(attack.fills(), task.spec)
    model = task.victim({})
    before = {name: value.detach().clone() for name, value in model.parameters().items()}
    rows = {metric.name: [[], [], []] for metric in metrics}
    seconds, refused = list[float](), list[str]()
    for round in range(options.rounds):
        for client in range(task.clients):
            where = {"batch_size": settings.batch_size, "steps": 1}
            truth = task.truth([client], round, **where)
            (batch,) = task.batches(client, round, **where)
            with isolated(scenario.seed, "benchmark", round, client):
                gradient = model.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
            sent = {name: value.detach() for name, value in gradient.items()}
            update = Update(sent, "gradient", num_examples=len(batch))
            seen = threat.observe(Interception(round, (client,), before, update), truth=truth)
            job = Job(torch_generator(scenario.seed, "attack", round, client))
            started = time.perf_counter()
            try:
                claimed = attack.reconstruct(seen, job)
            except (ValueError, RuntimeError) as reason:  # as a run does, which records a failure
                refused.append(f"{truth.lengths} frames: {type(reason).__name__}: {reason}")
                claimed = Reconstruction(inputs=[], attributes={"speaker": [{}]})
            seconds.append(time.perf_counter() - started)
            rankings, _ = attack.rank(truth.inputs or (), seen, job)
            best = replace(claimed, inputs=truth.inputs, attributes={"speaker": rankings})
            for metric in metrics:
                chance, _ = baselines(metric, truth, task.spec, task.guess, 0)
                values = (chance, *(metric.score(one, truth, task.spec) for one in (claimed, best)))
                for column, value in zip(rows[metric.name], values, strict=True):
                    column.append(value)
    updates, utterances = len(seconds), len(seconds) * settings.batch_size
    among = len(task.spec.attributes["speaker"])
    print(f"{updates} updates, {utterances} utterances, {among} candidates, {len(refused)} refused")
    print(f"{'':14}{'chance':>12}{'attack':>12}{'ceiling':>12}")
    for name, columns in rows.items():
        means = [sum(column) / len(column) for column in columns]
        print(f"{name:14}" + "".join(f"{mean:12.3g}" for mean in means))
    others = sum(seconds[1:]) / max(len(seconds) - 1, 1)
    print(f"first update {seconds[0]:.1f} s, the others {others:.1f} s")
    for reason in sorted(set(refused)):
        print(f"refused: {reason}")


if __name__ == "__main__":
    main()
