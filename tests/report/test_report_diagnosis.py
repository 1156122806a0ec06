"""Why attacks leak or not, as a report says it: by the verdict, whatever was measured."""

import pytest
from support.run_folders import HOSTILE, Page, page_of, row, write_csv, written

from fedsim.report import verdicts, write_report
from fedsim.report.diagnosis import FILE, NEEDED, explain

REASONS = {
    "point": "", "seed": "7", "label": "llg", "expected": "nothing", "found": "nothing",
    "reasons": "examples", "unknown": "", "seen": "80 examples", "needs": "at most 4 examples",
    "advice": "a smaller training.batch_size", "layers": "{}",
}  # fmt: skip


def measured(folder, *rows):
    """Writes a diagnosis.csv of the given rows."""
    write_csv(folder / FILE, [{**REASONS, **one} for one in rows], sorted(NEEDED))
    return folder


def reason(round=1, client=1, **more):
    return {"round": round, "victim": f"r{round:04d}-c{client:0>4}", **more}


def said(folder):
    """What is said of the only adversary."""
    (one,) = explain(folder)
    return str(one)


def test_what_was_found_comes_first_and_then_why_no_more_was(tmp_path):
    rows = [row(1, n, "dlg", "asr", 0.6, 0.1) for n in range(20)]
    rows += [row(1, n, "dlg", "mse", 0.3, 0.3) for n in range(20)]
    folder = measured(written(tmp_path, *rows), *(reason(1, n, label="dlg") for n in range(20)))
    (verdict,) = verdicts(folder)
    assert verdict["kind"] == "leaks"
    assert said(folder) == (
        "dlg found labels (Labels recovered 60 %, chance 10 %), no inputs. It finds no more in "
        "round 1: 80 examples; it needs at most 4 examples; try a smaller training.batch_size"
    )


def test_few_victims_do_not_show_that_a_guess_would_have_found_as_much(tmp_path):
    """All labels of three victims are right: a guess that finds 40 % is not ruled out."""
    rows = [row(n, 1, "dlg", "recovered", 1.0, 0.0, baseline_prior=0.0) for n in (1, 2, 3)]
    rows += [row(n, 1, "dlg", "asr", 1.0, 0.1, baseline_prior=0.4) for n in (1, 2, 3)]
    assert said(written(tmp_path, *rows)) == (
        "dlg found inputs (Recovered 100 %, chance 0 %), labels not shown to be more than a guess "
        "from public data (Labels recovered 100 %, guess 40 %)"
    )


def test_what_a_guess_from_public_data_finds_stands_beside(tmp_path):
    rows = [row(n, 1, value=0.6, baseline=0.1, baseline_prior=0.6) for n in range(1, 21)]
    folder = written(tmp_path, *rows)
    (verdict,) = verdicts(folder)
    assert verdict["kind"] == "guessed"
    assert said(folder) == (
        "llg is not shown to find more than a guess from public data "
        "(Labels recovered 60 %, chance 10 %, guess 60 %)"
    )


def test_an_adversary_that_finds_nothing_is_told_what_it_needs(tmp_path):
    rows = [row(n, 1, value=0.1, baseline=0.1, batch_size=10) for n in range(1, 31)]
    folder = measured(written(tmp_path, *rows), *(reason(n) for n in range(1, 31)))
    (verdict,) = verdicts(folder)
    assert verdict["kind"] in ("nothing", "unclear")
    assert said(folder).endswith(
        ". In rounds 1 to 30: 80 examples; it needs at most 4 examples; "
        "try a smaller training.batch_size"
    )
    assert verdict["badge"].removeprefix("nothing seen") in said(folder)


@pytest.mark.parametrize(
    ("iterations", "advice"),
    [(0, "try another adversary"), (10, "try more iterations or another adversary")],
)
def test_only_an_attack_that_makes_iterations_is_told_to_make_more(tmp_path, iterations, advice):
    rows = [row(n, 1, value=0.1, baseline=0.1, iterations=iterations) for n in range(1, 31)]
    folder = measured(written(tmp_path, *rows), *(reason(n, expected="leaks") for n in (1, 2)))
    assert said(folder).endswith(f"In rounds 1 to 2: 80 examples; {advice}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"status": "failed", "error": "RuntimeError: two\nlines"}, "failed: RuntimeError: two l"),
        ({"status": "failed", "error": "its node is lost."}, "failed: its node is lost. In"),
        ({"status": "timeout", "error": "over 60 s"}, "ran out of time: over 60 s. In"),
        ({"status": "unverified", "error": "misfit: Adam"}, "is unverified: misfit: Adam. In"),
        ({"value": "", "truth": "absent", "checked": "not checked: the client revealed nothing"},
         "cannot be scored: truth absent (the client revealed nothing). In"),
    ],
)  # fmt: skip
def test_an_attack_without_a_score_found_not_nothing(tmp_path, more, words):
    rows = [row(1, n, baseline="", **more) for n in range(3)]
    folder = measured(
        written(tmp_path, *rows), *(reason(1, n, found=more.get("status", "")) for n in range(3))
    )
    assert said(folder).startswith(f"llg {words}")
    assert "nothing" not in said(folder).replace("revealed nothing", "")


@pytest.mark.parametrize(("status", "advised"), [("ok", True), ("failed", False)])
def test_no_setting_records_an_update_that_was_refused(tmp_path, status, advised):
    rows = [row(n, 1, status=status, value=1.0 if advised else "") for n in range(1, 5)]
    more = {"expected": "leaks", "layers": "", "unknown": "noise"}
    found = {"ok": "leaks"}.get(status, status)
    folder = measured(
        written(tmp_path, *rows), *(reason(n, found=found, **more) for n in range(1, 5))
    )
    assert "updates were not recorded" in said(folder)
    assert ("record.keep" in said(folder)) is advised


def test_some_attacks_without_a_score_are_counted(tmp_path):
    rows = [row(1, n, value=1.0, baseline=0.1) for n in range(20)]
    rows += [row(2, n, status="failed", error="RuntimeError: no") for n in range(2)]
    folder = written(tmp_path, *rows)
    assert said(folder) == (
        "llg found labels (Labels recovered 100 % → 30 %, chance 11.8 %); "
        "2 of 22 attacks failed: RuntimeError: no"
    )


def test_knowledge_that_is_withheld_is_named(tmp_path):
    lacks = {"seen": "", "needs": "MODEL", "advice": "threat.grants with MODEL", "found": "denied"}
    assert said(measured(written(tmp_path), reason(**lacks))) == (
        "llg is not attacked yet. In round 1 it would be denied: it needs MODEL, which "
        "threat.grants withholds; try threat.grants with MODEL"
    )


def test_rounds_with_the_same_reasons_are_one_stretch(tmp_path):
    rows = [row(n, c, value=1.0, baseline=0.1) for n in (1, 2, 3) for c in range(10)]
    easy = {"expected": "leaks", "found": "leaks", "reasons": "", "needs": "", "advice": ""}
    easy["seen"] = "1 example in 1 local step, with all that it requires"
    reasons = [reason(n, c, **(easy if n < 3 and c else {})) for n in (1, 2, 3) for c in range(10)]
    text = said(measured(written(tmp_path, *rows), *reasons))
    assert (
        ". In rounds 1 to 2: 1 example in 1 local step, with all that it requires "
        "(so in 18 of 20 updates). It finds no more in round 3: 80 examples" in text
    )


def test_seeds_are_repetitions_of_a_point(tmp_path):
    points = [f"seed={seed},noise=0.1" for seed in (1, 2)]
    rows = [row(1, n, value=1.0, baseline=0.1, point=points[seed - 1], seed=seed)
            for seed in (1, 2) for n in range(10)]  # fmt: skip
    reasons = [reason(1, n, point=points[seed - 1], seed=seed)
               for seed in (1, 2) for n in range(10)]  # fmt: skip
    folder = measured(written(tmp_path, *rows, points=points), *reasons)
    assert said(folder).startswith("noise=0.1: llg found labels")
    assert "(so in" not in said(folder)


def test_text_of_the_folder_is_escaped(tmp_path):
    folder = written(tmp_path, row(label=HOSTILE, status="failed", error=HOSTILE))
    measured(
        folder, reason(label=HOSTILE, found="failed", seen=HOSTILE, advice=f"\x1b[1m{HOSTILE}")
    )
    page = Page(page_of(folder))
    assert "window.hacked" in "".join(page.words)
    assert not [one for one in page.elements if one[0] == "img"]
    named = [{k: v for k, v in one.items() if k != "data-label"} for _, one in page.elements]
    assert "hacked" not in str(named)
    assert "\x1b" not in str(explain(folder)[0])
    assert "<script>" not in write_report(folder, "markdown").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["", "point,round\n,1\n", '"', "no csv"])
def test_a_diagnosis_that_cannot_be_read_is_a_note(tmp_path, content):
    folder = written(tmp_path, row())
    (folder / FILE).write_text(content)
    page = page_of(folder)
    assert "Why it leaks, or not" in page
    assert "`fedsim diagnose RUN`" in page
