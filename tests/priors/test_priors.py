"""Language priors: what they say of a text, in whose tokens, and what cannot be one."""

import math
from collections import Counter

import pytest
import torch
from support.prior_models import padded, whole

from fedsim.errors import DataError
from fedsim.priors import NGramPrior, language_prior, sentences
from fedsim.seeds import torch_generator
from fedsim.tasks.text.messages import public_messages

# --- every prior ----------------------------------------------------------------------------


def test_many_texts_at_a_time_are_each_as_one_alone(prior, bert):
    rows = whole(bert, 20)
    sizes = torch.tensor([len(row) for row in rows])
    assert len(set(sizes.tolist())) > 3
    together = prior.surprise(padded(rows), sizes)
    assert together.shape == (20,)
    assert together.dtype == torch.float32
    alone = torch.cat([prior.surprise(row[None]) for row in rows])
    torch.testing.assert_close(together, alone)


def test_what_stands_beyond_a_length_changes_nothing(prior, bert):
    rows = whole(bert, 6)
    sizes = torch.tensor([len(row) for row in rows])
    assert torch.equal(
        prior.surprise(padded(rows), sizes), prior.surprise(padded(rows, -100), sizes)
    )


def test_repeated_texts_are_told_the_same_and_in_place(prior, bert):
    rows = whole(bert, 4)
    sizes = torch.tensor([len(row) for row in rows])
    once = prior.surprise(padded(rows), sizes)
    assert len(set(once.tolist())) == 4
    again = torch.tensor([2, 0, 2, 1, 3, 0])
    torch.testing.assert_close(prior.surprise(padded(rows)[again], sizes[again]), once[again])


def test_the_order_of_words_matters(prior, bert):
    text = whole(bert, 1)[0]
    order = torch.cat([torch.tensor([0]), torch.arange(len(text) - 2, 0, -1), torch.tensor([-1])])
    there, back = prior.surprise(torch.stack([text, text[order]]))
    assert abs(float(there - back)) > 1e-3


def test_no_text_at_all_has_no_surprises(prior):
    assert prior.surprise(torch.zeros(0, 5, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        (torch.zeros(2, 3), None, "expected \\(R, L\\) int64"),
        (torch.zeros(3, dtype=torch.int64), None, "expected \\(R, L\\) int64"),
        (torch.full((1, 3), 600), None, "expected ids below 600"),
        (torch.full((1, 3), -1), None, "expected ids below 600"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 3]), "one of 1 and more a row"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([3]), "one of 1 and more a row"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 4]), "rows have 3 tokens"),
    ],
)
def test_what_is_no_rows_of_ids_is_refused(prior, ids, lengths, message):
    with pytest.raises(ValueError, match=message):
        prior.surprise(ids, lengths)


# --- n-grams --------------------------------------------------------------------------------


def distribution(model, context):
    """The probability of every next token."""
    size = model._vocabulary
    rows = torch.cat([context.expand(size, -1), torch.arange(size)[:, None]], dim=1)
    return torch.from_numpy(model._likelihoods(rows.numpy())[:, -1])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_of_the_next_token_sum_to_1(bert, gpt2, order):
    for tokens in (bert, gpt2):
        model = NGramPrior.fit(public_messages()[:300], tokens, order)
        for text in [*whole(tokens, 3), torch.tensor([7]), torch.tensor([5, 5, 5, 5])]:
            for length in range(1, len(text) + 1):
                each = distribution(model, text[:length])
                assert each.sum() == pytest.approx(1, abs=1e-9)
                assert each.min() > 0


def test_surprise_is_the_mean_over_the_next_tokens(fitted, bert):
    text = whole(bert, 1)[0]
    each = [float(distribution(fitted, text[:n])[text[n]].log()) for n in range(1, len(text))]
    assert float(fitted.surprise(text[None])) == pytest.approx(-sum(each) / len(each), rel=1e-5)


def plainly(rows, size, order):
    """Modified Kneser-Ney as Chen and Goodman define it, one dictionary an order; -> p(w, h)."""
    raw = [Counter(tuple(r[i : i + n]) for r in rows for i in range(len(r) - n + 1))
           for n in range(1, order + 1)]  # fmt: skip
    firsts = [Counter(tuple(r[:n]) for r in rows if len(r) >= n) for n in range(1, order + 1)]
    counts = []
    for n in range(1, order):
        before = Counter(gram[1:] for gram in raw[n])
        counts.append(before + (firsts[n - 1] if n > 1 else Counter()))
    counts.append(raw[-1])
    off = []
    for count in counts:
        n1, n2, n3, n4 = (sum(c == k for c in count.values()) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        each = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        # With nothing taken off, nothing would be left for what was never seen.
        off.append([0, *(max(0.05, d) for d in each)])

    def likelihood(word, history):
        history = tuple(history)[-(order - 1) :] if order > 1 else ()
        count, less = counts[len(history)], off[len(history)]
        after = {gram: c for gram, c in count.items() if gram[:-1] == history}
        lower = likelihood(word, history[1:]) if history else 1 / size
        if not after:
            return lower
        c = count[(*history, word)]
        kept = sum(less[min(c, 3)] for c in after.values())
        return (c - less[min(c, 3)] + kept * lower) / sum(after.values())

    return likelihood


def test_likelihoods_are_those_of_the_definition(bert, gpt2):
    for tokens, start in ((bert, []), (gpt2, [len(gpt2.pieces)])):
        texts = public_messages()[:200]
        rows = [[*start, *tokens.prefix, *tokens.encode(t), *tokens.suffix] for t in texts]
        likelihood = plainly(rows, len(tokens.pieces), 3)
        model = NGramPrior.fit(texts, tokens)
        for text in whole(tokens, 4, start=190):
            row = [*start, *text.tolist()]
            each = [math.log(likelihood(row[i], row[:i])) for i in range(1, len(row))]
            expected = -sum(each) / len(each)
            assert float(model.surprise(text[None])) == pytest.approx(expected, rel=1e-6)


def test_new_texts_are_likelier_than_their_words_in_another_order(fitted, bert):
    rng, better = torch_generator(0, "orders"), 0
    known = {" ".join(text.lower().split()) for text in public_messages()[::2]}
    texts = [row for row in whole(bert, 60) if bert.spell(row.tolist()) not in known]
    for text in texts:
        inner = [text[1:-1][torch.randperm(len(text) - 2, generator=rng)] for _ in range(5)]
        others = torch.stack([torch.cat([text[:1], one, text[-1:]]) for one in inner])
        said = fitted.surprise(torch.cat([text[None], others]))
        better += int(said.argmin() == 0)
    assert better > 0.9 * len(texts) > 30


def test_more_context_predicts_new_texts_better(bert):
    rows = whole(bert, 100)
    sizes = torch.tensor([len(row) for row in rows])
    said = [
        float(NGramPrior.fit(public_messages()[::2], bert, n).surprise(padded(rows), sizes).mean())
        for n in (1, 2, 3)
    ]
    assert said[0] > said[1] > said[2]
    assert said[0] < math.log(len(bert.pieces))


def test_what_begins_a_text_is_known_where_nothing_stands_before_it(gpt2):
    assert not gpt2.prefix
    model = NGramPrior.fit(public_messages()[::2], gpt2)
    text = whole(gpt2, 1)[0]
    turned = model.surprise(torch.stack([text, torch.cat([text[1:], text[:1]])]))
    assert turned[0] < turned[1]
    assert float(model.surprise(text[None, :1])) > 0


def test_long_texts_are_split_at_the_ends_of_sentences(bert):
    short = "One thing. Another thing."
    long = ' "Is it late?" she said. He (who knew.) was silent! ' + "On and on it went " * 8 + "."
    assert [bert.spell(ids) for ids in sentences([short], bert)] == [bert.spell(bert.encode(short))]
    found = [bert.spell(ids) for ids in sentences([long, " "], bert)]
    said = ['"Is it late?"', "she said.", "He (who knew.)", "was silent!", long[52:]]
    assert found == [bert.spell(bert.encode(one)) for one in said]
    assert all(ids[0] == bert.prefix[0] for ids in sentences([long], bert))


def test_an_n_gram_prior_without_texts_says_what_to_do(bert):
    for texts in (None, (), ("", " ")):
        with pytest.raises(DataError, match=r"there are none.*Grant PRIOR.*\"FOLDER\""):
            language_prior("n-gram", texts, bert)
