"""Tables: columns are encoded, bad ones are refused, rows are recovered and scored by column."""

import csv
import io
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from support.tiny import rows

from fedsim import Scenario, Spec, TabularSpec, simulate, testing
from fedsim.errors import DataError, ScenarioError
from fedsim.metrics import METRICS, applicable, baselines
from fedsim.plugin import make
from fedsim.records import Reconstruction, Truth
from fedsim.spec import Column
from fedsim.tasks.tabular import Tabular


def patients(count: int = 60, seed: int = 0) -> pd.DataFrame:
    """A table with numbers, categories, codes and a label."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, count),
            "ward": rng.choice(["east", "north", "west"], count),
            "code": rng.integers(1, 4, count),
            "fever": rng.random(count) < 0.5,
            "dose": rng.random(count),
            "outcome": rng.choice(["well", "ill"], count),
        }
    )


def task(folder, frame, name="patients", **settings) -> Tabular:
    frame.to_csv(folder / f"{name}.csv", index=False)
    made = make("tasks", "tabular", {"data": name, "folder": folder, "clients": 3, **settings})
    assert isinstance(made, Tabular)
    return made


@pytest.fixture
def mixed(tmp_path) -> Tabular:
    return task(tmp_path, patients(), categorical=["code"])


def test_columns_are_encoded_by_what_they_hold(mixed):
    table, spec = mixed.examples, mixed.spec
    assert [column.categories for column in spec.columns] == [
        (), ("east", "north", "west"), ("1", "2", "3"), ("False", "True"), (),
    ]  # fmt: skip
    assert (spec.classes, spec.input_shape, table.names) == (2, (10,), ("ill", "well"))
    held = table.rows[table.train]
    for at in (0, 9):
        assert held[:, at].mean().item() == pytest.approx(0, abs=1e-6)
        assert held[:, at].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    decoded = [spec.cells(row) for row in table.rows]
    expected = patients().drop(columns="outcome").astype(dict.fromkeys(("code", "fever"), str))
    for ours, true in zip(decoded, expected.itertuples(index=False), strict=True):
        assert ours[1:4] == list(true[1:4])
        assert ours[0] == pytest.approx(true[0], abs=1e-3)
        assert ours[4] == pytest.approx(true[4], abs=1e-6)


def test_a_parquet_file_holds_the_same_table(mixed, tmp_path):
    (tmp_path / "tables").mkdir()
    patients().to_parquet(tmp_path / "tables" / "stored.parquet")
    stored = Tabular(data="stored", folder=tmp_path, categorical=("code",))
    assert stored.fingerprint() == mixed.fingerprint()
    assert Tabular(data="stored", folder=tmp_path).fingerprint() != mixed.fingerprint()


def test_the_label_is_the_column_so_called_or_the_last_or_the_one_named(mixed, tmp_path):
    named = task(tmp_path, patients().rename(columns={"ward": "label"}))
    assert named.examples.names == ("east", "north", "west")
    assert task(tmp_path, patients(), label="fever").examples.names == ("False", "True")
    coded = task(tmp_path, patients(), label="code").examples
    assert coded.names == ("1", "2", "3")
    assert coded.labels.tolist() == [code - 1 for code in patients()["code"]]


def test_another_table_can_be_the_test_split(tmp_path):
    patients(20, seed=1).to_csv(tmp_path / "later.csv", index=False)
    split = task(tmp_path, patients(), test_data="later").examples
    assert (split.train.tolist(), split.test.tolist()) == (list(range(60)), list(range(60, 80)))
    alone = task(tmp_path, patients()).examples
    assert split.columns[0].mean == pytest.approx(patients()["age"].mean())
    assert split.columns[0].mean != alone.columns[0].mean


BAD = {
    "missing": (lambda f: f.assign(age=[None, *f["age"][1:]]), {}, "'age' has no value in 1 rows"),
    "infinite": (lambda f: f.assign(dose=np.inf), {}, "'dose' has no value in 60 rows"),
    "no label": (lambda f: f, {"label": "outcom"}, "has no column 'outcom'. Did you mean 'outcome"),
    "no category": (lambda f: f, {"categorical": ["wards"]}, "has no column 'wards'. Did you mean"),
    "one class": (lambda f: f.assign(outcome="ill"), {}, "label column 'outcome' is ill in every"),
    "constant": (lambda f: f.assign(dose=0.1), {}, "column 'dose' is 0.1 in every training row"),
    "beyond floats": (lambda f: f.assign(dose=f["dose"] * 1e300), {}, "'dose' cannot be standard"),
    "alike as floats": (
        lambda f: f.assign(dose=2**62 + np.arange(60)), {}, "'dose' cannot be standardised"
    ),
    "one category": (lambda f: f.assign(ward="east"), {}, "column 'ward' is east in every"),
    "fractions": (lambda f: f, {"label": "dose"}, "'dose' holds fractions; expected classes"),
    "few rows": (lambda f: f[:2], {}, "has 2 rows; expected 3 or more"),
    "label alone": (lambda f: f[["outcome"]], {}, "has no column but the label"),
    "names": (
        lambda f: pd.concat([f] * 5).assign(ward=[f"w{i}" for i in range(300)]), {},
        "column 'ward' has 300 categories; expected 256 or fewer",
    ),
    "unseen category": (
        lambda f: f.replace("north", "east"), {"test_data": "later"},
        "column 'ward' of the test rows has 'north', which no row of data 'patients' has",
    ),
    "unseen label": (
        lambda f: f.replace({"outcome": {"ill": "sick"}}), {"test_data": "later"},
        "label column 'outcome' of the test rows has 'ill'",
    ),
    "test columns": (
        lambda f: f.assign(more=f["age"]), {"test_data": "later"}, "'later' lacks the columns more"
    ),
    "not there": (lambda f: f, {"data": "patient"}, r"no data 'patient' in .*mean 'patients'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "settings", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_trained_on_is_refused_with_the_fix(change, settings, message, tmp_path):
    patients(30, seed=2).to_csv(tmp_path / "later.csv", index=False)
    with pytest.raises(DataError, match=message):
        _ = task(tmp_path, change(patients()), **settings).examples


def test_a_split_leaves_a_row_to_train_on(tmp_path):
    few = patients(3).assign(outcome=["well", "ill", "ill"])
    with pytest.raises(DataError, match="in every training row"):
        _ = task(tmp_path, few, test_fraction=0.9).examples


def test_a_file_that_is_no_table_is_one_clear_error(tmp_path):
    (tmp_path / "odd.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "odd2.parquet").write_text("no parquet")
    for name in ("odd", "odd2"):
        with pytest.raises(DataError, match=rf"{name}\.\w+ cannot be read"):
            _ = Tabular(data=name, folder=tmp_path).examples


def test_models_of_images_are_refused():
    with pytest.raises(DataError, match=r"'cnn' takes images.*shape \(30,\). Use mlp"):
        _ = Tabular(model="cnn").head
    with pytest.raises(ScenarioError, match="inverting-gradients attacks images, and task 'tabula"):
        Scenario.parse(
            {"task": {"name": "tabular"}, "adversaries": [{"name": "inverting-gradients"}]}
        )


def test_scikit_learns_tables_are_built_in():
    wine, cancer = Tabular(data="wine").examples, Tabular().examples
    assert (wine.classes, wine.shape, len(wine.rows)) == (3, (13,), 178)
    assert (cancer.names, cancer.shape, len(cancer.rows)) == (("benign", "malignant"), (30,), 569)


# --- metrics --------------------------------------------------------------------------------

SPEC = TabularSpec(
    2, columns=(Column("age", mean=50, scale=10), Column("ward", ("east", "north", "west")))
)
TRUE = Truth(inputs=[torch.tensor([1.0, 0, 1, 0]), torch.tensor([-1.0, 1, 0, 0])])


@pytest.mark.parametrize(
    ("claims", "exact", "error", "matched"),
    [
        ([[1, 0, 1, 0], [-1, 1, 0, 0]], 1, 0, 1),
        ([[-1, 1, 0, 0], [1, 0, 1, 0]], 1, 0, 1),
        ([[1, 0, 0.6, 0.5], [-1.005, 3, 2, 0]], 1, 0.0025, 1),
        ([[1.5, 0, 1, 0], [-1, 0, 0, 1]], 0, 0.25, 0.5),
        ([[1, 0, 1, 0]], 0.5, 0.5, 0.5),
        ([[float("nan")] * 4, [1, 0, 1, 0]], 0.5, 0.5, 0.5),
        ([[0, 0, 0, 1]] * 2 + [[1, 0, 1, 0]] * 2, 0, 1, 0),
        ([], 0, 1, 0),
    ],
)
def test_rows_are_scored_by_column(claims, exact, error, matched):
    claim = Reconstruction(inputs=[torch.tensor(one).float() for one in claims])
    found = [
        METRICS[m].score(claim, TRUE, SPEC) for m in ("row_exact", "column_error", "column_match")
    ]
    assert found == pytest.approx([exact, error, matched], abs=1e-6)


def test_metrics_are_those_of_the_columns_that_there_are(mixed):
    def names(spec):
        return {m.name for m in applicable({"inputs"}, spec)}

    assert names(SPEC) == {"row_exact", "column_error", "column_match"}
    assert names(TabularSpec(2, columns=SPEC.columns[:1])) == {"row_exact", "column_error"}
    assert names(TabularSpec(2, columns=SPEC.columns[1:])) == {"row_exact", "column_match"}
    assert not names(SPEC) & names(Spec(2, (4,)))
    for name in names(SPEC):
        assert testing.conformance(type(METRICS[name]), mixed) == []


def test_the_task_keeps_its_contract_with_categories(mixed):
    assert testing.conformance(Tabular, mixed) == []


def test_a_guess_from_public_rows_beats_a_blind_one(tmp_path):
    known = task(tmp_path, patients(300), auxiliary_fraction=0.3)
    found = []
    for client in range(3):
        for round in range(1, 9):
            truth = known.truth([client], round, batch_size=1, steps=1)
            metric = METRICS["column_error"]
            found.append(baselines(metric, truth, known.spec, known.guess, seed=round))
    blind, informed = torch.tensor(found).mean(dim=0).tolist()
    assert informed < 0.9 * blind


def test_to_claim_the_medians_of_public_rows_beats_no_prior_guess(tmp_path):
    frame, metric, ours, prior = patients(300), METRICS["column_error"], 0.0, 0.0
    frame["dose"] = np.exp(5 * frame["dose"])  # few large values
    known = task(tmp_path, frame, auxiliary_fraction=0.3)
    medians = known.examples.inputs(known.held_out[0]).median(dim=0).values
    for round in range(1, 30):
        truth = known.truth([round % 3], round, batch_size=4, steps=1)
        ours += metric.score(Reconstruction(inputs=[medians] * 4), truth, known.spec)
        prior += baselines(metric, truth, known.spec, known.guess, seed=round)[1]
    assert ours >= prior


# --- attacks --------------------------------------------------------------------------------


def test_the_shipped_scenario_recovers_labels_and_rows(tmp_path):
    simulate(Scenario.load("tabular"), out=tmp_path / "run")
    found = defaultdict(list)
    for row in rows(tmp_path / "run"):
        assert row["status"] == "ok", row["error"]
        found[row["label"], row["metric"]].append(float(row["value"]))
    assert found["llg", "asr"] == [1.0] * 12
    assert found["first-linear", "row_exact"] == [1.0] * 12
    assert found["dlg", "row_exact"] == [1.0] * 6
    assert "Rows recovered" in (tmp_path / "run" / "report.html").read_text()


def test_categories_are_recovered_and_shown_beside_the_original(tmp_path):
    table = patients().rename(columns={"code": "=1+1"})  # a formula, to a spreadsheet
    table.to_csv(tmp_path / "patients.csv", index=False)
    table = {
        "task": {"name": "tabular", "data": "patients"},
        "training": {"algorithm": "fedsgd", "rounds": 1, "clients": 3, "batch_size": 1},
        "adversaries": [{"name": "first-linear"}, {"name": "rlg"}],
        "data_dir": str(tmp_path),
        "engine": {"workers": 1},
    }
    simulate(Scenario.parse(table), out=tmp_path / "run")
    found = {(r["label"], r["metric"]): float(r["value"]) for r in rows(tmp_path / "run")}
    for metric in ("row_exact", "column_match"):
        assert found["first-linear", metric] == 1
    [folder, *_] = sorted((tmp_path / "run").glob("artifacts/*/first-linear"))
    texts = (path for path in folder.iterdir() if path.suffix in (".csv", ".txt"))
    files = {path.name: path.read_text() for path in texts}
    cells = {r["column"]: r for r in csv.DictReader(io.StringIO(files["cells.csv"]))}
    ward = cells["ward"]["original"]
    assert ward == cells["ward"]["reconstruction"] in ("east", "north", "west")
    assert f"ward: {ward} → {ward}\n" in files["reconstruction.txt"]
    assert list(cells) == ["age", "ward", "'=1+1", "fever", "dose"]


def test_a_row_whose_squares_are_infinite_is_scored_as_any_other():
    rows = [TRUE.inputs[0].double(), torch.full_like(TRUE.inputs[0], 1e200, dtype=torch.float64)]
    claim = Reconstruction(inputs=rows)
    assert METRICS["row_exact"].score(claim, TRUE, SPEC) == 1 / len(TRUE.inputs)


def test_a_column_of_numbers_with_a_mark_for_missing_ones_is_cautioned(tmp_path):
    rows = "\n".join(f"{i},{'?' if i == 5 else i / 3:},{'ab'[i % 2]}" for i in range(40))
    (tmp_path / "marked.csv").write_text(f"age,score,label\n{rows}\n")
    task = Tabular(data="marked", folder=tmp_path, clients=2)
    (caution,) = [one for one in task.cautions() if "score" in one]
    assert "1 of its 40 values are no numbers, the first '?'" in caution


def test_labels_that_are_nearly_all_different_are_cautioned(tmp_path):
    rows = "\n".join(f"{i / 7},{i}" for i in range(40))
    (tmp_path / "numbers.csv").write_text(f"age,income\n{rows}\n")
    task = Tabular(data="numbers", label="income", folder=tmp_path, clients=2)
    assert [one for one in task.cautions() if "'income' has 40 classes in 40 rows" in one]


ROWS = [f"{i / 7:.3f},{i % 5},{'yes' if i % 2 else 'no'}" for i in range(20)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n".join(ROWS), "the first line is a row of data, '0.000,0,no'; expected names"),
        ("a;note;label\n" + "0.5;so, so;no\n" * 5, "separated by ';'; expected commas"),
        ("a, b;note;label\n" + "0.5;so, so;no\n" * 5, "separated by ';'; expected commas"),
        ("a,b,label\n" + "\n".join(f"{one}," for one in ROWS), "more cells than the first line"),
    ],
    ids=["no names", "commas in cells", "commas in names", "commas at the end"],
)
def test_a_file_that_is_no_table_with_names_and_commas_says_so(tmp_path, text, said):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        _ = Tabular(data="own", folder=tmp_path, clients=2).examples


def test_row_numbers_without_a_name_are_no_column(tmp_path):
    rows = "\n".join(f"{i}, {one}" for i, one in enumerate(ROWS))
    (tmp_path / "own.csv").write_text(f", a, b, label\n{rows}\n")
    task = Tabular(data="own", folder=tmp_path, clients=2)
    assert [column.name for column in task.spec.columns] == ["a", "b"]
    assert task.examples.names == ("no", "yes")


def test_years_and_numbers_may_be_names_of_columns(tmp_path):
    for name, first in (("years", "2019,2020,label"), ("counted", "0,1,2")):
        (tmp_path / f"{name}.csv").write_text("\n".join([first, *ROWS]))
        task = Tabular(data=name, folder=tmp_path, clients=2)
        assert len(task.examples.rows) == 20


def test_text_that_differs_in_most_rows_is_cautioned(tmp_path):
    rows = "\n".join(f'"1,{i:03d}",{i % 2}' for i in range(40))
    (tmp_path / "own.csv").write_text(f"income,label\n{rows}\n")
    (caution,) = Tabular(data="own", folder=tmp_path, clients=2).cautions()
    assert "'income' is taken for 40 categories in 40 rows, the first '1,000'" in caution


def test_other_separators_are_named(tmp_path):
    (tmp_path / "other.csv").write_text("age;score\n" + "".join(f"{i};{i % 2}\n" for i in range(9)))
    with pytest.raises(DataError, match="separated by ';'; expected commas"):
        _ = Tabular(data="other", folder=tmp_path, clients=2).examples
