"""What holds for every graph: the engine agrees with a plain restatement of the rules, and nothing is lost in time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.engine.assemble import assemble
from simcore.engine.schedule import Schedule
from simcore.errors import DeadlockError
from simcore.exposure import compute_busy_ps, waits
from simcore.running import simulate
from simcore.timeline import Released
from tests.oracle import oracle_columns, runs_one_at_a_time, same
from tests.random_graphs import flat_of, play, random_graph

randoms = st.randoms(use_true_random=False)
some = settings(max_examples=60, deadline=None)


def partial_schedule(engine) -> Schedule:
    """The engine's columns, also of a run that came to a stand."""
    engine.finished = len(engine.flat)
    return engine.schedule()


@some
@given(randoms)
def test_the_engine_gives_the_oracle_s_timeline_to_the_picosecond(rng):
    flat = flat_of(random_graph(rng))
    assert same(oracle_columns(flat), partial_schedule(play(flat))) == []


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_it_does_so_for_fixed_seeds_too(first):
    for seed in range(first, first + 100):
        flat = flat_of(random_graph(Random(seed)))
        assert same(oracle_columns(flat), partial_schedule(play(flat))) == [], seed


@some
@given(randoms)
def test_a_graph_that_can_run_one_task_at_a_time_never_deadlocks_and_no_other_comes_through(rng):
    flat = flat_of(random_graph(rng))
    if runs_one_at_a_time(flat):
        assert (simulate(flat).done_ps >= 0).all()
    else:
        with pytest.raises(DeadlockError, match=r"waits for .+"):
            simulate(flat)


def finished_timeline(rng):
    """The timeline of a random graph that comes through: of many, the first that does."""
    while True:
        flat = flat_of(random_graph(rng))
        engine = play(flat)
        if engine.finished == len(flat):
            return flat, assemble(flat, engine.schedule())


@some
@given(st.integers(0, 10**6))
def test_busy_and_idle_fill_the_makespan_of_every_unit_and_no_unit_serves_two_at_once(seed):
    _, timeline = finished_timeline(Random(seed))
    for lane in range(len(timeline.lanes)):
        at = busy = idle = 0
        for row in timeline.rows_of_lane(lane).tolist():
            start, end = int(timeline.start_ps[row]), int(timeline.end_ps[row])
            assert start >= at
            idle, busy, at = idle + start - at, busy + end - start, end
        idle += timeline.makespan_ps - at
        assert busy + idle == timeline.makespan_ps
        assert busy == sum(timeline.end_ps[timeline.lane == lane].tolist()) - sum(
            timeline.start_ps[timeline.lane == lane].tolist()
        )


@some
@given(st.integers(0, 10**6))
def test_computing_and_attributed_waits_fill_the_makespan_of_every_entity(seed):
    _, timeline = finished_timeline(Random(seed))
    for entity in range(len(timeline.entities)):
        found = waits(timeline, entity)
        total = sum(wait.end_ps - wait.start_ps for wait in found)
        assert compute_busy_ps(timeline, entity) + total == timeline.makespan_ps
        assert all(wait.end_ps > wait.start_ps for wait in found)
        assert all(a.end_ps <= b.start_ps for a, b in pairwise(found))


@some
@given(st.integers(0, 10**6))
def test_each_start_is_the_moment_of_what_released_it(seed):
    flat, t = finished_timeline(Random(seed))
    assert (t.ready_ps <= t.granted_ps).all()
    assert (t.granted_ps <= t.start_ps).all()
    assert (t.start_ps + flat.duration_ps == t.end_ps).all()
    assert (t.end_ps + flat.latency_ps == t.done_ps).all()
    for row, (by, how) in enumerate(zip(t.released_by.tolist(), t.released_how.tolist(), strict=True)):
        if how == Released.NOTHING:
            assert (by, t.start_ps[row]) == (-1, 0)
        elif how == Released.UNIT:
            assert t.end_ps[by] == t.start_ps[row]
        elif how == Released.QUEUE:
            assert t.start_ps[by] == t.start_ps[row] == t.ready_ps[row]
        elif how == Released.DEPENDENCY:
            lags = flat.start_lags_ps[flat.start_dependents.start[by] : flat.start_dependents.start[by + 1]]
            moments = {int(t.done_ps[by]), *(t.start_ps[by] + lags).tolist()}
            assert int(t.start_ps[row]) in moments


@some
@given(st.integers(0, 10**6))
def test_no_buffer_is_held_twice_at_once_and_grants_follow_the_program(seed):
    flat, t = finished_timeline(Random(seed))
    slots = t.slots
    for number, pool in enumerate(flat.pools):
        rows = np.array(pool.takes, dtype=np.int64)
        assert (np.diff(slots.granted_ps[rows]) >= 0).all()
        assert (slots.slot[rows] < pool.pool.buffers).all()
        for slot in range(pool.pool.buffers):
            mine = rows[slots.slot[rows] == slot]
            assert (slots.released_ps[mine][:-1] <= slots.granted_ps[mine][1:]).all(), number


@some
@given(st.integers(0, 10**6))
def test_the_same_graph_gives_the_same_timeline_again(seed):
    flat, first = finished_timeline(Random(seed))
    again = simulate(flat)
    for column in ("ready_ps", "granted_ps", "start_ps", "end_ps", "done_ps", "released_by", "released_how"):
        assert np.array_equal(getattr(first, column), getattr(again, column))
