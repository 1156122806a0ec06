"""A process builds a scenario once for all of its clients, and forgets old ones."""

from support.tiny import ask, initial, same, scenario, sent

from fedsim.engine.inline import InlineGrid
from fedsim.federation import session
from fedsim.federation.session import session_of, share
from fedsim.scenario.built import build


def test_clients_use_the_run_that_their_process_has_built():
    run = scenario(seed=11)
    built = build(run)
    share(built)
    first = sent(ask(InlineGrid(6), run, 0))
    ask(InlineGrid(6), run, 1)
    own = session_of(run.model_dump_json())
    assert own.built is built
    share(build(run))
    assert session_of(run.model_dump_json()) is not own
    assert same(sent(ask(InlineGrid(6), run, 0)), first)


def test_a_process_that_was_given_nothing_builds_once_and_takes_over_the_task():
    texts = [scenario(seed=12, training={"lr": lr}).model_dump_json() for lr in (0.1, 0.2)]
    first, second = map(session_of, texts)
    assert session_of(texts[0]) is first
    assert second.built.task is first.built.task
    assert second.module is not first.module


def test_clients_make_no_adversary():
    assert session_of(scenario(seed=15).model_dump_json()).built.adversaries == ()


def test_sessions_are_bounded():
    grid = InlineGrid(6)
    for seed in range(4):
        ask(grid, scenario(seed=seed), 0)
    kept = [one.built.scenario.seed for one in session._SESSIONS.values()]
    assert kept == [2, 3]
    assert len(kept) == session.KEPT


def test_the_arrays_of_a_round_are_decoded_once():
    run = scenario(seed=13)
    share(build(run))
    own, arrays = session_of(run.model_dump_json()), initial(run)
    first, second = own.load(arrays), own.load(arrays)
    assert all(first[name] is second[name] for name in arrays)
    first.clear()
    other = own.load(initial(scenario(seed=14)))
    assert not same(other, second)
    assert same(dict(own.module.state_dict()), other)
