"""Repetitions of a reproduction that attack other numbers of victims."""

from collections import Counter

from support.tiny import rows
from support.tiny_figures import table, toml

from fedsim.reproduce.console import reproduce


def test_further_seeds_may_attack_fewer_victims(tmp_path, attacked):
    source, folder = toml(tmp_path), tmp_path / "out/test/tiny/smoke/tiny"
    reproduce(source, tmp_path / "out", overrides=["training.clients=3", "paper.repetitions=1"])
    before = rows(folder)
    fewer = ["training.clients=3", "paper.repetitions=2", "threat.victims=1"]
    markdown, _ = reproduce(source, tmp_path / "out", overrides=fewer)
    after = rows(folder)
    assert attacked == {1: 4, 4: 4}
    assert [row for row in after if row["point"].startswith("seed=3,")] == before
    assert len({row["victim"] for row in after if row["point"].startswith("seed=4,")}) == 1
    for row in table(markdown.read_text(), "batch size"):
        assert row[-1] == "4, 2 seeds"
        assert "over victims of 2 networks" in row[1]


def test_more_victims_are_added_to_finished_repetitions(tmp_path, attacked):
    source, folder = toml(tmp_path), tmp_path / "out/test/tiny/smoke/tiny"
    for victims in (1, 2, 2):
        more = ["training.clients=3", "paper.repetitions=1", f"threat.victims={victims}"]
        reproduce(source, tmp_path / "out", overrides=more)
        assert attacked == {1: victims, 4: victims}
    found = Counter(row["point"] for row in rows(folder) if row["metric"] == "asr")
    assert {*found.values()} == {4}  # of LLG and iDLG, two each
