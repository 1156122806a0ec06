"""Metrics of text: ROUGE, tokens, matching within a batch, chance levels, and marked words."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from fedsim.errors import PluginError
from fedsim.metric import Measure, Metric
from fedsim.metrics import BUILT_IN, METRICS, applicable, baselines, read
from fedsim.metrics.text import TokenEdits
from fedsim.metrics.text_pairs import rouge
from fedsim.records import Reconstruction, Truth
from fedsim.report.exhibits import marked
from fedsim.spec import ImageSpec, TextSpec
from fedsim.tasks.text import Text
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer, learn_tokenizer
from fedsim.tasks.text.messages import public_messages

TOKENIZER = learn_tokenizer(public_messages(), 600, True)
TOKENS = describe_tokenizer(TOKENIZER, 600, 64, "words")
SPEC = TextSpec(classes=4, tokens=TOKENS)
FIRST = "the wifi password is otter"
SECOND = "we meet at the harbour at noon"


def ids(text, *, frame=True):
    inner = TOKENS.encode(text)
    return torch.tensor([*TOKENS.prefix, *inner, *TOKENS.suffix] if frame else inner)


TRUTH = Truth(labels=torch.tensor([0, 3]), tokens=[ids(FIRST), ids(SECOND)], text=[FIRST, SECOND])
ALONE = Truth(labels=torch.tensor([0]), tokens=[ids(FIRST)], text=[FIRST])


def score(name, truth=TRUTH, **claimed):
    return METRICS[name].score(Reconstruction(**claimed), truth, SPEC)


def test_one_of_two_texts_may_be_claimed_by_its_tokens_too():
    for one in ({"text": [FIRST, SECOND], "tokens": [ids(FIRST)]},
                {"text": [FIRST], "tokens": [ids(FIRST), ids(SECOND)]}):  # fmt: skip
        assert score("rouge1", **one) == score("token_exact", **one) == 1


def test_texts_without_tokens_have_no_edits():
    assert math.isnan(score("token_edits", Truth(tokens=[ids("")], text=[""]), text=["a"]))


PERFECT = {
    name: 1.0
    for name in METRICS
    if name in {one.name for one in BUILT_IN if one.__module__ == TokenEdits.__module__}
}
PERFECT["token_edits"] = 0.0


@pytest.mark.parametrize("name", PERFECT)
@pytest.mark.parametrize(
    "claimed",
    [
        {"tokens": [ids(FIRST), ids(SECOND)]},
        {"tokens": [ids(SECOND), ids(FIRST)]},
        {"tokens": [ids(SECOND, frame=False), ids(FIRST, frame=False)]},
        {"text": [SECOND.upper(), f"  {FIRST}"]},
        {"tokens": [torch.cat([ids(FIRST), torch.zeros(3).long()]), ids(SECOND)]},
    ],
    ids=["as they are", "in another order", "bare", "text alone", "padded"],
)
def test_the_truth_has_every_score_whatever_its_order_and_form(name, claimed):
    assert score(name, **claimed) == pytest.approx(PERFECT[name])


def test_rouge_by_hand():
    """Five words against five, three right; two pairs right of four; three in order."""
    claim = {"text": ["the wifi password or card"]}
    assert score("rouge1", ALONE, **claim) == pytest.approx(3 / 5)
    assert score("rouge2", ALONE, **claim) == pytest.approx(2 / 4)
    assert score("rougeL", ALONE, **claim) == pytest.approx(3 / 5)
    turned = {"text": ["otter is password wifi the"]}
    assert score("rouge1", ALONE, **turned) == 1
    assert score("rouge2", ALONE, **turned) == 0
    assert score("rougeL", ALONE, **turned) == pytest.approx(1 / 5)


def test_rouge_reads_words_of_any_alphabet():
    for text in ("пароль от сети выдра", "για σένα", "für Zoë", "日本 語"):
        assert rouge(text, text)[0] == rouge(text, text)[2] == 1
    assert rouge("пароль от дома", "пароль от сети")[0] == pytest.approx(2 / 3)


@given(st.text(st.characters(codec="ascii")), st.text(st.characters(codec="ascii")))
def test_of_ascii_rouge_reads_the_words_that_rouge_score_does(ours, true):
    known = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(true, ours)
    assert rouge(ours, true) == tuple(known[name].fmeasure for name in known)


def test_the_authors_rouge_counts_the_frame_as_words():
    """[CLS] and [SEP] are two words that are always right: 2 of 7 where nothing else is."""
    wrong = {"text": ["my doctor takes ten lamps"]}
    assert score("rouge1", ALONE, **wrong) == 0
    assert score("rouge1_authors", ALONE, **wrong) == pytest.approx(2 / 7)
    assert score("rougeL_authors", ALONE, **wrong) == pytest.approx(2 / 7)
    assert score("rouge2_authors", ALONE, **wrong) == 0


def test_what_a_claim_puts_elsewhere_of_the_frame_is_scored_as_it_is():
    """One that keeps no [SEP] does not get it for nothing."""
    ours = ids(FIRST)[:-1]
    assert score("rouge1", ALONE, tokens=[ours]) == 1
    assert score("rouge1_authors", ALONE, tokens=[ours]) == pytest.approx(2 * 6 / (6 + 7))


@pytest.mark.parametrize("name", PERFECT)
@pytest.mark.parametrize("claimed", [{"tokens": []}, {"text": []}, {"text": ["", ""]}])
def test_an_empty_claim_is_the_worst_there_is(name, claimed):
    assert score(name, **claimed) == (1.0 if name == "token_edits" else 0.0)


@pytest.mark.parametrize("name", ["rouge1", "rouge2", "rougeL", "token_exact", "token_edits"])
def test_claiming_much_does_not_pay(name):
    flood = [ids("my card"), ids("a lamp"), ids(FIRST), ids(SECOND)]
    plain = [ids("my card"), ids("a lamp")]
    assert score(name, tokens=flood) == pytest.approx(score(name, tokens=plain))


def test_half_of_a_batch():
    assert score("token_exact", tokens=[ids(SECOND)]) == 0.5
    assert score("rouge1", tokens=[ids(SECOND)]) == 0.5
    missing = len(ids(FIRST, frame=False))
    total = missing + len(ids(SECOND, frame=False))
    assert score("token_edits", tokens=[ids(SECOND)]) == pytest.approx(missing / total)


def test_matching_is_best_for_the_whole_batch():
    """Alone, the first claim is nearer to the first text, which the second claim needs more."""
    both = Truth(
        labels=torch.tensor([0, 0]),
        tokens=[ids("a b c d e f"), ids("a b c d x y")],
        text=["a b c d e f", "a b c d x y"],
    )
    claimed = Reconstruction(text=["a b c d x f", "a b c d e f"])
    assert read(claimed, both, SPEC) == ["a b c d e f", "a b c d x f"]


def test_a_bag_of_tokens_needs_no_order_and_no_text():
    bag = {}
    for one in (*ids(FIRST).tolist(), *ids(SECOND).tolist()):
        bag[one] = bag.get(one, 0) + 1
    assert score("token_f1", token_counts=bag) == 1
    assert score("token_f1", tokens=[ids(FIRST), ids(SECOND)]) == 1
    once = dict.fromkeys(bag, 1)
    assert score("token_set_f1", token_counts=once) == 1
    assert 0.8 < score("token_f1", token_counts=once) < 1, "'the' and 'at' are there twice"
    assert score("token_f1", token_counts=dict.fromkeys(TOKENS.marks, 5)) == 0
    assert score("token_f1", token_counts={}) == 0


def test_special_tokens_and_the_unknown_are_no_part_of_a_text():
    unknown = TOKENS.special["unk"]
    assert TOKENS.bare([2, unknown, 9, 3, 0]) == [9]
    assert TOKENS.spell(ids(FIRST).tolist()) == FIRST
    assert TOKENS.spell(ids(FIRST).tolist(), special=True).startswith("[CLS]")
    assert TOKENS.spell([99_999, -1]) == ""


@given(st.lists(st.integers(5, 8), max_size=6), st.lists(st.integers(5, 8), min_size=1, max_size=6))
def test_edits_are_those_of_the_recursion(first, second):
    def slow(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(
            slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0])
        )  # fmt: skip

    ours, true = torch.tensor(first, dtype=torch.long), torch.tensor(second)
    edits = score("token_edits", Truth(tokens=[true]), tokens=[ours])
    assert edits == pytest.approx(slow(first, second) / len(second))


def test_metrics_of_text_are_for_tasks_with_tokens():
    names = {one.name for one in applicable({"tokens", "text", "token_counts"}, SPEC)}
    assert names == set(PERFECT)
    images = ImageSpec(classes=3, input_shape=(1, 2, 2))
    assert not {one.name for one in applicable({"tokens", "token_counts"}, images)}
    assert {one.name for one in applicable({"token_counts"}, SPEC)} == {"token_f1", "token_set_f1"}
    with pytest.raises(ValueError, match="expected a task with texts; this task has images"):
        METRICS["rouge1"].score(Reconstruction(text=["a"]), TRUTH, images)
    with pytest.raises(ValueError, match="no tokens"):
        score("rouge1", Truth(text=["a"]), text=["a"])
    with pytest.raises(PluginError, match="tokens or text"):
        score("rouge1", token_counts={5: 1})


def test_what_no_terminal_can_hold_is_scored_all_the_same():
    assert score("rouge1", ALONE, text=["\ud800 the wifi password is otter \x00"]) > 0.8


@pytest.fixture(scope="module")
def task():
    return Text(seed=3, clients=4, vocabulary=600)


def test_every_metric_of_text_has_two_chance_levels_and_the_informed_is_higher(task):
    truth = task.truth([0, 1], 0, batch_size=3, steps=1)
    found = {
        name: baselines(METRICS[name], truth, task.spec, task.guess, 0) for name in sorted(PERFECT)
    }
    assert found["token_exact"] == (0.0, 0.0)
    for name in ("rouge1", "rougeL", "token_f1", "token_set_f1"):
        random, informed = found[name]
        assert 0 < random < informed < 0.5, name
    assert found["rouge1_authors"][0] > found["rouge1"][0] + 0.1, "[CLS] and [SEP] for nothing"
    assert found["token_edits"][0] > 0.9
    assert found["token_edits"][1] <= 1  # that of no word


class Longest(Metric):
    """A metric of one's own, which reads the true texts."""

    name, shown, fields = "longest", Measure("Longest"), ("text",)

    def compute(self, claimed, truth, spec):
        return float(max(map(len, claimed.text)) == max(map(len, truth.text)))

    def suits(self, spec):
        return True


def test_a_metric_of_ones_own_may_read_more_of_the_truth_than_tokens(task):
    truth = task.truth([0], 1, batch_size=2, steps=1)
    random, informed = baselines(Longest(), truth, task.spec, task.guess, 0)
    assert random is not None
    assert informed is not None


@pytest.mark.parametrize("name", ["rouge1", "token_f1", "token_set_f1", "token_edits"])
@pytest.mark.parametrize("size", [1, 4])
def test_to_claim_the_most_frequent_words_beats_no_prior_guess(name, size, task):
    metric, spec, ours, prior = METRICS[name], task.spec, 0.0, 0.0
    for client in range(4):
        for round in range(1, 9):
            truth = task.truth([client], round, batch_size=size, steps=1)
            claimed = Reconstruction(text=["the i at for my ."] * size)
            ours += metric.score(claimed, truth, spec)
            prior += baselines(metric, truth, spec, task.guess, 40 * client + round)[1]
    if metric.shown.lower:
        assert ours > prior * 0.96  # the full stop at the end saves an edit
    else:
        assert ours < prior * 1.1


@pytest.mark.parametrize(
    ("ours", "true", "expected"),
    [
        ("the red fox", "the red dog", {"the": "run", "red": "run", "fox": ""}),
        ("red the", "the red", {"red": "word", "the": "word"}),
        ("fox fox", "a fox", {"fox": "word"}),
        ("THE pin", "the pin!", {"THE": "run", "pin": "run"}),
        ("none", "of it", {"none": ""}),
    ],
)
def test_the_words_of_the_original_are_marked(ours, true, expected):
    found = marked(ours, true)
    assert "".join(text for text, _ in found) == ours
    said = {}
    for text, mark in found:
        if text.strip():
            said[text] = said.get(text) or mark
    assert said == expected
    assert sum(mark != "" for _, mark in found) <= len(true.split())


def test_lines_are_marked_against_their_own_line():
    found = marked("alpha\nbeta\n", "beta\nalpha\n")
    assert not any(mark for _, mark in found)
    assert any(mark for _, mark in marked("alpha beta\n", "beta\nalpha\n"))
