"""A run folder of three points and several seeds, whose numbers are known."""

from support.run_folders import SCENARIO, row, write_csv

SIGMAS = ("0.0", "0.01", "0.1")
LEAKED = {"0.0": 0.9, "0.01": 0.6, "0.1": 0.2}
"""What `llg` recovers at each point, on average over seeds and victims."""


def value(sigma, seed, client):
    """A score: that of its point, a shift of its seed and one of its client."""
    return LEAKED[sigma] + 0.02 * (seed - 8) + (0.05 if client == 1 else -0.05)


def repeated(folder, seeds=(7, 8, 9), sigmas=SIGMAS, more=()):
    """Write the folder: two victims a round, three rounds, adversaries `llg` and `dlg`."""
    folder.mkdir(parents=True, exist_ok=True)
    findings, utility = [], []
    for seed in seeds:
        for sigma in sigmas:
            point = f"seed={seed},defenses.0.sigma={sigma}"
            for at in (1, 2, 3):
                for client in (1, 2):
                    key = {"point": point, "seed": seed}
                    findings.append(row(at, client, value=value(sigma, seed, client), **key))
                    error = 0.01 * (1 + float(sigma) * 50) + seed / 1e4
                    findings.append(row(at, client, "dlg", "mse", error, 0.2, **key))
                for metric, one in (("accuracy", 0.2 * at + seed / 100), ("loss", 2.0 / at)):
                    utility.append({"round": at, "metric": metric, "value": one, "point": point})
    (folder / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    write_csv(folder / "findings.csv", [*findings, *more], list(findings[0]))
    write_csv(folder / "utility.csv", utility, ["round", "metric", "value", "point"])
    return folder
