"""What LAMP, TAG and DLG for texts need, and what they refuse."""

import dataclasses

import pytest
import torch
from support.text_victims import BERT, GPT2, QUICK, Scored, seen, small

from adversaries import LAMP, TAG, DLGText
from adversaries.text.dummy_texts import DummyTexts
from fedsim import testing
from fedsim.engine.preflight import preflight
from fedsim.errors import DataError
from fedsim.gradients import Comparison, TextDistance
from fedsim.knowledge import Knowledge
from fedsim.priors import LanguagePrior
from fedsim.scenario import Scenario


def test_what_is_not_granted_is_needed():
    for attack in (LAMP(), TAG(), DLGText()):
        assert attack.requires() & Knowledge.LABELS
        assert attack.requires() & Knowledge.LENGTHS
    assert LAMP().requires() & Knowledge.PRIOR
    assert LAMP.by_default() & Knowledge.PRIOR
    assert not LAMP(labels_from="bias-signs").requires() & Knowledge.LABELS


@pytest.mark.parametrize(
    "settings", [{"prior_weight": 0.0}, {"discrete": "none"}, {"prior": "a folder"}]
)
def test_public_texts_are_needed_only_where_a_prior_is_fitted_on_them(settings, monkeypatch):
    asked = []

    class Indifferent(LanguagePrior):
        description = "all orders alike"

        def surprise(self, ids, lengths=None):
            return torch.zeros(len(ids))

    def made(name, texts, *_):
        asked.append((name, texts))
        return Indifferent()

    monkeypatch.setattr("adversaries.text.lamp.language_prior", made)
    attack = LAMP(**QUICK, steps=2, **settings)
    assert not attack.requires() & Knowledge.PRIOR
    observed, _ = seen(small(), prior=None)
    assert Knowledge.PRIOR not in observed.granted
    attack.reconstruct(observed, testing.job())
    assert set(asked) == ({("a folder", None)} if "prior" in settings else set())


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ("ibert", {}, r"no rule for .*QuantEmbedding"),
        (
            "longformer",
            {"attention_window": 8},
            "cannot start from word embeddings, which this",
        ),
    ],
)
def test_models_that_cannot_be_matched_are_refused_in_words(config, more, message):
    model = {"name": "transformers", "config": config, "settings": BERT | more}
    observed, _ = seen(small(model=model))
    with pytest.raises(ValueError, match=message):
        TAG(steps=1).reconstruct(observed, testing.job())


def test_bad_input_is_refused_with_a_reason():
    quick = TAG(steps=1)
    observed, _ = seen(small(), lengths=[1])
    with pytest.raises(ValueError, match="texts of \\[1\\] tokens"):
        quick.reconstruct(observed, testing.job())
    observed, _ = seen(small(), labels=torch.tensor([9]))
    with pytest.raises(ValueError, match="labels \\[9\\]; expected 0 to"):
        quick.reconstruct(observed, testing.job())
    observed, _ = seen(small(), size=2, lengths=None)
    with pytest.raises(ValueError, match="grant LENGTHS"):
        TAG(steps=1, unknown="enumerate").reconstruct(observed, testing.job())
    observed, _ = seen(small(), prior=())
    with pytest.raises(DataError, match="n-gram"):
        LAMP(**QUICK, steps=1).reconstruct(observed, testing.job())
    noisy, _ = seen(small(), lengths=None)
    noise = {name: torch.randn_like(value) for name, value in noisy.gradient.items()}
    noisy = dataclasses.replace(noisy, gradient=noise)
    with pytest.raises(ValueError, match="combinations of labels and lengths are too many"):
        TAG(steps=1, unknown="enumerate").reconstruct(noisy, testing.job())
    images = testing.observation(
        gradient=observed.gradient, head=observed.head, classes=2, model=observed.model,
        num_examples=1, labels=torch.tensor([0]), lengths=[5],
    )  # fmt: skip
    with pytest.raises(ValueError, match="expected a task with texts"):
        quick.reconstruct(images, testing.job())


def test_a_prior_that_takes_fewer_tokens_is_refused_before_any_start(monkeypatch):
    observed, truth = seen(small())

    class Short(Scored):
        def surprise(self, ids, lengths=None):
            if (length := int(lengths.max())) > 8:
                raise DataError(f"takes 8 tokens, and a text has {length}")
            return super().surprise(ids)

    monkeypatch.setattr("adversaries.text.lamp.language_prior", lambda *_: Short(torch.tensor(0)))
    monkeypatch.setattr(LAMP, "first", lambda *_: pytest.fail("it has started"))
    with pytest.raises(DataError, match=f"a text has {len(truth.tokens[0])}"):
        LAMP(prior="a folder").reconstruct(observed, testing.job())


def test_a_prior_that_cannot_be_loaded_is_refused_before_training():
    attack = {"name": "lamp", "prior": "no such folder"}
    run = {"name": "text", "task": {"name": "text"}, "training": {"clients": 2}}
    run |= {"threat": {"grants": "full"}}
    with pytest.raises(DataError, match=r"'no such folder' is neither .*n-gram"):
        preflight(Scenario.parse({**run, "adversaries": [attack]}))
    preflight(Scenario.parse({**run, "adversaries": [attack | {"prior_weight": 0.0}]}))


def test_a_pattern_that_fits_no_parameter_is_cautioned_of():
    (caution,) = LAMP(parameters={"hed.*": 1.0}).cautions(small().victim({}))
    assert "'hed.*' fits none of the parameters" in caution


def test_dropout_is_cautioned_of():
    assert not LAMP().cautions(small().victim({}))
    assert "random" in LAMP().cautions(small(dropout=True).victim({}))[0]


@pytest.mark.parametrize(
    "attack", [TAG(), DLGText(), LAMP(**QUICK, distance="l2"), LAMP(**QUICK)], ids=lambda a: a.name
)
def test_a_gradient_of_zero_is_refused(attack):
    observed, _ = seen(small())
    nothing = {name: torch.zeros_like(value) for name, value in observed.gradient.items()}
    with pytest.raises(ValueError, match="zero throughout"):
        attack.reconstruct(dataclasses.replace(observed, gradient=nothing), testing.job())


@pytest.mark.parametrize("settings", [{"discrete": "end"}, {"discrete": "none", "polish": 4}])
def test_the_objective_is_that_of_the_claim(settings, monkeypatch):
    measured = []
    finished = LAMP.finished

    def spy(self, match, candidate, texts, *rest):
        found = finished(self, match, candidate, texts, *rest)
        measured.append(float(texts(match.point[None], torch.tensor([candidate])).detach()))
        return found

    monkeypatch.setattr(LAMP, "finished", spy)
    attack = LAMP(**QUICK | {"steps": 40, "lr": 0.05} | settings)
    claim = attack.reconstruct(seen(small(), 1)[0], testing.job())
    assert [claim.objective] == pytest.approx(measured)


@pytest.mark.parametrize(
    ("labels", "lengths", "orders"),
    [
        ([0, 2], [9, 12], [[0, 2], [2, 0]]),
        ([1, 1], [9, 12], [[1, 1]]),
        ([0, 2], [9, 9], [[0, 2]]),
        ([*range(5)], [*range(9, 14)], [[*range(5)]]),  # 120 orders are too many
        # 16 of 16! permutations differ
        (
            [0] * 15 + [1],
            [9] * 15 + [12],
            [[0] * at + [1] + [0] * (15 - at) for at in range(16)][::-1],
        ),
        ([2] * 16, [9] * 15 + [12], [[2] * 16]),
    ],
)
def test_labels_of_another_attack_are_tried_in_every_order(labels, lengths, orders, monkeypatch):
    monkeypatch.setattr(TAG, "labels", lambda *_: torch.tensor(labels))
    observed, _ = seen(small())
    granted = observed.granted & ~Knowledge.LABELS
    spec = dataclasses.replace(observed.spec, classes=5)
    shown = dataclasses.replace(
        observed,
        labels=None, lengths=lengths, num_examples=len(labels), granted=granted, spec=spec,
    )  # fmt: skip
    found = TAG(labels_from="llg").candidate_batches(shown, testing.job())
    assert [one.labels.tolist() for one in found] == orders


@pytest.mark.parametrize("distance", ["l2", "l1+l2", "cosine"])
@pytest.mark.parametrize("config", ["bert", "gpt2"])
@pytest.mark.parametrize("spread", [0.02, 0.2])
def test_only_the_true_tokens_are_verified(config, spread, distance):
    settings = (BERT if config == "bert" else GPT2) | {"initializer_range": spread}
    model = {"name": "transformers", "config": config, "settings": settings}
    observed, truth = seen(small(model=model))
    attack = LAMP(distance=distance)
    (candidate,) = attack.candidate_batches(observed, testing.job())
    far = TextDistance(
        observed.model, [observed.gradient], [candidate.labels], [candidate.lengths],
        comparison=Comparison(distance, {"*": 1.0}, torch.device("cpu"), torch.float32),
    )  # fmt: skip
    texts, one = DummyTexts(far, [candidate], *attack.texts(observed)), torch.tensor([0])

    def verified(ids):
        return bool(texts.distance(texts.fed(ids[None, None], one), one) < texts.matched)

    ids = truth.tokens[0]
    assert verified(ids)
    places = [at for at in range(2, len(ids) - 2) if ids[at] != ids[at + 1]]
    for at in places[:4]:
        swapped = ids.clone()
        swapped[[at, at + 1]] = ids[[at + 1, at]]
        assert not verified(swapped)


@pytest.mark.parametrize("config", ["gemma", "gemma2"])
def test_embeddings_that_a_model_scales_are_those_that_are_matched(config):
    settings = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 24}  # fmt: skip
    observed, truth = seen(
        small(model={"name": "transformers", "config": config, "settings": settings})
    )
    model, ids = observed.model, truth.tokens[0]
    same = model.gradient(
        model.embedding[ids][None], observed.labels, at="embedding", lengths=[len(ids)]
    )
    for name, value in observed.gradient.items():
        assert name == model.words or torch.allclose(same[name], value, atol=1e-5)


def lengths_tried(observed):
    attack = DLGText(unknown="enumerate")
    found = attack.candidate_batches(observed, testing.job())
    return {int(one.lengths) for one in found}


@pytest.mark.parametrize("sent", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("client", range(3))
def test_the_number_of_positions_tells_the_length_of_a_rounded_update(client, sent):
    settings = BERT | {"initializer_range": 0.02}
    task = small(model={"name": "transformers", "config": "bert", "settings": settings})
    observed, truth = seen(task, client, lengths=None)
    gradient = {k: v.to(sent).to(v.dtype) for k, v in observed.gradient.items()}
    assert lengths_tried(dataclasses.replace(observed, gradient=gradient)) == {len(truth.tokens[0])}


def test_no_length_ends_before_a_word_that_is_known_to_be_masked():
    settings = BERT | {"max_position_embeddings": 60}
    model = {"name": "transformers", "config": "bert", "settings": settings}
    observed, truth = seen(small(task="masked-lm", model=model), 1, lengths=None)
    noise = torch.Generator().manual_seed(0)
    gradient = {
        name: value + torch.randn(value.shape, generator=noise)
        for name, value in observed.gradient.items()
    }
    last = int((observed.labels >= 0).nonzero()[:, 1].max())
    tried = lengths_tried(dataclasses.replace(observed, gradient=gradient))
    assert min(tried) == last + 2
    nothing = torch.full_like(observed.labels, -100)
    noisy = dataclasses.replace(observed, gradient=gradient, labels=nothing)
    assert min(lengths_tried(noisy)) == 3
    assert len(truth.tokens[0]) in tried
