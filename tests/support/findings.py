"""A finding as a run writes it."""

from support.tiny import scenario

from fedsim.records import Finding

RUN = scenario()


def finding(**changes) -> Finding:
    values = {
        "scenario": "tiny",
        "point": "",
        "seed": 3,
        "round": 1,
        "client": "0",
        "victim": "r0001-c0000",
        "adversary": "llg",
        "metric": "asr",
        "value": 0.5,
        "baseline": 0.1,
        "baseline_prior": None,
        "status": "ok",
        "error": "",
        "attempt": 1,
        "seconds": 0.25,
        "iterations": 0,
        "granted": "HEAD_GRADIENT|BATCH_SIZE",
        "label": "llg",
        "batch_size": 4,
        "local_steps": 1,
        "inclusion": 1.0,
        "artifact": "",
    }
    return Finding(**{**values, **changes})
