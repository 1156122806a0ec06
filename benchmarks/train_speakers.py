"""Train an encoder of voices once, for `encoder = "FOLDER"` of `speaker-inference`.

    python benchmarks/train_speakers.py --out FOLDER [speakers] [--set key=value ...] [--data DIR]

Trains what the scenario's `speaker-inference` would train by itself, on the public utterances of
its task: of each speaker task.auxiliary_utterances. The papers' size is

    --set 'adversaries=[{name="speaker-inference",widths=[64,128,256,512],blocks=3,embedding=512}]'

An encoder hears frames as the task makes them: train it with the same task.features. Prints the
loss, and then how often and at which rank it names the speakers of utterances of the clients, which
it never heard, in original quality.
"""

import argparse
import os
import time
from pathlib import Path

import torch

from adversaries import SpeakerInference
from adversaries.speech.speaker_inference.voiceprints import saved
from fedsim.adversary import Job
from fedsim.knowledge import Knowledge
from fedsim.metrics import applicable
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.scenario import Scenario
from fedsim.seeds import torch_generator

SAID_EVERY = 10
JUDGED = 200
"""Utterances of the clients at most."""


def main() -> None:
    """Train, save, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("scenario", nargs="?", default="speakers")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    scenario = Scenario.load(options.scenario, options.overrides, data=options.data)
    task = scenario.build_task()
    found = [one for _, _, one in scenario.build_adversaries() if one.name == SpeakerInference.name]
    if not found:
        parser.error(f"scenario '{options.scenario}' has no adversary '{SpeakerInference.name}'")
    attack = found[0].model_copy(update={"encoder": None})
    assert isinstance(attack, SpeakerInference)
    public = task.auxiliary()
    if public is None:
        parser.error("no utterance is public: set task.auxiliary_utterances")
    seen = Observation(Knowledge.AUXILIARY, task.spec, task.head, auxiliary=public)
    began, said, losses = time.perf_counter(), 0.0, list[float]()

    def told(step: int, loss: float) -> None:
        nonlocal said
        losses.append(loss)
        if time.perf_counter() - began - said > SAID_EVERY:
            said = time.perf_counter() - began
            last = losses[-20:]
            print(f"{said:.0f} s: step {step}, loss {sum(last) / len(last):.3f}", flush=True)

    job = Job(torch_generator(scenario.seed, "encoder"), on_progress=told)
    prints = attack.listen(seen, job)
    weights = sum(p.numel() for p in prints.network.parameters())
    print(f"{time.perf_counter() - began:.0f} s, {len(losses)} steps, {weights} weights")
    saved(prints.network, options.out)

    held = [task.truth([client], 0, batch_size=10**6, steps=1) for client in range(task.clients)]
    inputs = [frames for one in held for frames in one.inputs or ()]
    speakers = [name for one in held for name in one.attributes["speaker"]]
    order = torch.randperm(len(inputs), generator=torch_generator(scenario.seed, "judged"))
    some = order[:JUDGED].tolist()
    truth = Truth(
        inputs=[inputs[i] for i in some], attributes={"speaker": [speakers[i] for i in some]}
    )
    rankings, _ = attack.rank(truth.inputs or (), seen, job)
    claimed = Reconstruction(attributes={"speaker": rankings})
    print(f"{len(some)} utterances of clients, {len(task.spec.attributes['speaker'])} candidates:")
    for metric in applicable({"attributes"}, task.spec):
        value = metric.score(claimed, truth, task.spec)
        assert metric.chance is not None
        print(f"  {metric.name}: {value:.3f}, chance {metric.chance(truth, task.spec):.3f}")


if __name__ == "__main__":
    main()
