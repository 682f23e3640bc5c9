"""The race check finds every pair of accesses that only the timing orders, and lets what is ordered pass."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor, all_gather, all_reduce, reduce_scatter
from simcore.errors import RaceError
from simcore.graph import BufferAccess, Fixed, Ref, Take, TaskGraph, TensorAccess
from simcore.graph.races import check_races
from simcore.graph.values import execute
from tests.random_graphs import flat_of


def two_tasks(after=(), writes=True, **options):
    """A writer of a tensor and a task that touches it."""
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    for unit in ("hbm", "mxu"):
        chip.unit(unit)
    for name in ("t", "u"):
        chip.tensor(name, bytes=8, shape=(4,))
    chip.task("a", unit="hbm", work=Fixed(5), writes=[TensorAccess("t")], **options)
    touch = {"writes" if writes else "reads": [TensorAccess("t")]}
    chip.task("b", unit="mxu", work=Fixed(5), after=after, **touch)
    return graph, chip


class TestTensors:
    @pytest.mark.parametrize("writes", [True, False])
    def test_two_accesses_without_order_race_whatever_the_timing(self, writes):
        graph, _ = two_tasks(writes=writes)
        verb = "write" if writes else "read"
        with pytest.raises(RaceError, match=f"tensor 't' of chip: the write by a on chip and the {verb} by b on chip"):
            check_races(flat_of(graph))
        check_races(flat_of(two_tasks(after=["a"], writes=writes)[0]))

    def test_a_reference_to_the_start_does_not_order_them(self):
        with pytest.raises(RaceError):
            check_races(flat_of(two_tasks(after=[Ref("a", event="start", lag_ps=10**9)])[0]))

    def test_two_reads_never_race_and_neither_do_other_regions(self):
        graph, chip = two_tasks(after=["a"])
        for number in range(2):
            chip.task(f"r{number}", after=["b"], reads=[TensorAccess("t")])
            part = TensorAccess("u", lambda i, c, n=number: (slice(2 * n, 2 * n + 2),))
            chip.task(f"w{number}", writes=[part])
        check_races(flat_of(graph))
        chip.task("w2", writes=[TensorAccess("u", lambda i, c: (slice(1, 3),))])
        with pytest.raises(RaceError, match="'u'"):
            check_races(flat_of(graph))

    def test_an_empty_region_touches_nothing(self):
        graph, chip = two_tasks(after=["a"])
        for name in ("c", "d"):
            chip.task(name, writes=[TensorAccess("u", lambda i, c, stop=3 + (name == "c"): (slice(3, stop),))])
        check_races(flat_of(graph))

    def test_a_neighbour_s_tensor_is_the_neighbour_s(self):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip", mesh={"x": 2})
        chip.tensor("t", bytes=8, shape=(4,))
        chip.task("own", writes=[TensorAccess("t")])
        chip.task("other", after=["own"], reads=[TensorAccess("t", on={"x": 1})])
        with pytest.raises(RaceError, match="write by own on chip x=0 and the read by other on chip x=1"):
            check_races(flat_of(graph))
        chip.tasks["other"].after = (Ref("own", on={"x": 1}),)
        check_races(flat_of(graph))


class TestOrderByUnits:
    def flat(self, latency_a=0, latency_b=0, queue_b="q", between=False, **options):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip")
        for unit in ("hbm", "mxu"):
            chip.unit(unit)
        chip.tensor("t", bytes=8, shape=(4,))
        write = [TensorAccess("t")]
        chip.task("a", unit="hbm", queue="q", work=Fixed(5), latency_ps=latency_a, writes=write)
        if between:
            chip.task("between", unit="mxu", queue="q", work=Fixed(5))
        chip.task("b", unit="hbm", queue=queue_b, work=Fixed(5), latency_ps=latency_b, writes=write, **options)
        return flat_of(graph)

    def test_one_queue_on_one_unit_orders_them(self):
        check_races(self.flat())

    def test_also_across_a_task_of_the_queue_on_another_unit(self):
        check_races(self.flat(between=True))

    def test_two_queues_on_one_unit_do_not(self):
        with pytest.raises(RaceError):
            check_races(self.flat(queue_b="other"))

    def test_a_latency_breaks_it(self):
        with pytest.raises(RaceError):
            check_races(self.flat(latency_a=1))

    def test_a_start_that_must_follow_a_start_on_one_unit_follows_its_end(self):
        check_races(self.flat(queue_b="other", after=[Ref("a", event="start")]))


class TestBuffers:
    def graph(self, freed_by=("use",), use_after=("load",), buffers=2):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip")
        for unit in ("hbm", "mxu"):
            chip.unit(unit)
        chip.pool("p", memory="vmem", buffers=buffers, buffer_bytes=8)
        with chip.loop("i", 3):
            load = chip.task("load", unit="hbm", takes=[Take("p", list(freed_by))], writes=[BufferAccess("p")])
            chip.task("use", unit="mxu", after=list(use_after), reads=[BufferAccess("p", load.ref())])
            chip.task("later", after=["use"])
        return flat_of(graph)

    def test_a_reader_that_frees_it_is_safe_and_so_is_one_done_before_that(self):
        check_races(self.graph())
        check_races(self.graph(freed_by=["later"]))

    def test_a_reader_that_the_release_does_not_wait_for_races(self):
        with pytest.raises(RaceError, match="may be freed before it is done: name it in freed_by"):
            check_races(self.graph(freed_by=[]))

    def test_a_reader_that_does_not_wait_for_the_load_races(self):
        with pytest.raises(RaceError, match="'p' taken by load"):
            check_races(self.graph(use_after=[]))

    def test_the_release_and_grant_of_an_only_buffer_order_what_is_before_and_after(self):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip")
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8)
        chip.tensor("t", bytes=8, shape=(4,))
        for name in ("a", "b"):
            chip.task(name, work=Fixed(5), takes=[Take("p", [])], writes=[TensorAccess("t")])
        check_races(flat_of(graph))


def produced_and_used(collective, n=3, direction="one_way"):
    """A collective between a task that makes its input on every chip and one that uses its output."""
    graph = TaskGraph("ring")
    chip = graph.entity_class("chip", mesh={"x": n})
    chip.tensor("t", bytes=2 * n * 8, shape=(2 * n,))
    chip.tensor("out", bytes=2 * n * 8, shape=(2 * n,))
    chip.task("make", work=Fixed(3), writes=[TensorAccess("t")], function=lambda: np.arange(2.0 * n))
    end = collective(chip, "c", "x", RingTensor("t", 16, 8), direction=direction, after=["make"])
    chip.task("use", after=[end], reads=[TensorAccess("t")], writes=[TensorAccess("out")], function=lambda t: t)
    return graph, chip


@pytest.mark.parametrize("collective", [all_gather, reduce_scatter, all_reduce])
@pytest.mark.parametrize("direction", ["one_way", "both"])
def test_a_collective_that_loses_a_dependency_is_caught_wherever_it_gives_wrong_values(collective, direction):
    whole, _ = produced_and_used(collective, direction=direction)
    flat = flat_of(whole)
    check_races(flat)
    right = execute(flat, {})
    tasks = whole.classes["chip"].tasks
    names = [(name, position) for name, task in tasks.items() for position in range(len(task.after))]
    caught = 0
    for name, position in names:
        graph, chip = produced_and_used(collective, direction=direction)
        after = chip.tasks[name].after
        chip.tasks[name].after = after[:position] + after[position + 1 :]
        flat = flat_of(graph)
        try:
            check_races(flat)
        except RaceError:
            caught += 1
            continue
        for seed in range(6):
            values = execute(flat, {}, seed=seed)
            assert all(np.array_equal(values[key], right[key], equal_nan=True) for key in right if key[1] == "out")
    assert caught >= len(names) / 3


@pytest.mark.parametrize(
    ("name", "lost"), [("c.send+", 0), ("c.send+", 1), ("c.send+", 2), ("c.end", 1), ("use", 0), ("c.begin", 0)]
)
def test_every_dependency_of_an_all_gather_is_needed(name, lost):
    graph, chip = produced_and_used(all_gather)
    after = chip.tasks[name].after
    chip.tasks[name].after = after[:lost] + after[lost + 1 :]
    with pytest.raises(RaceError):
        check_races(flat_of(graph))


def random_accesses(rng: Random):
    """A few tasks on one chip that read and write parts of two tensors and a buffer, in some order or none."""
    graph = TaskGraph("random")
    chip = graph.entity_class("chip")
    units = ["server_a", "server_b"]
    for unit in units:
        chip.unit(unit)
    for name in ("t", "u"):
        chip.tensor(name, bytes=8, shape=(4,))
    chip.pool("p", memory="vmem", buffers=rng.randint(1, 2), buffer_bytes=8)
    taker = None
    for number in range(rng.randint(2, 6)):
        known = sorted(chip.tasks)

        def access():
            start = rng.randint(0, 2)
            region = (slice(start, start + rng.randint(1, 4 - start)),)
            return TensorAccess(rng.choice(("t", "u")), lambda i, c: region)

        reads = [access() for _ in range(rng.randint(0, 2))]
        writes = [access() for _ in range(rng.randint(0, 1))]
        takes = []
        after = [
            Ref(name, event=rng.choice(("done", "done", "start")))
            for name in rng.sample(known, min(len(known), rng.randint(0, 2)))
        ]
        if taker is None and rng.random() < 0.4:
            takes, taker = [Take("p", [])], f"t{number}"
            writes.append(BufferAccess("p"))
        elif taker is not None and rng.random() < 0.5:
            reads.append(BufferAccess("p", Ref(taker)))
            if rng.random() < 0.7:
                old = chip.tasks[taker].takes
                chip.tasks[taker].takes = ((old[0][0], (*old[0][1], Ref(f"t{number}"))),)
            if rng.random() < 0.7:
                after.append(Ref(taker))

        def function(*values, salt=number, writes=writes):
            total = salt + 3 * sum(float(np.sum(v)) for v in values)
            return tuple(np.full(4, total) if isinstance(w, BufferAccess) else total for w in writes)

        chip.task(
            f"t{number}",
            unit=rng.choice([*units, None]),
            queue=rng.choice((None, "q")),
            latency_ps=rng.choice((0, 0, 1)),
            work=Fixed(rng.randint(0, 3)),
            after=after,
            takes=takes,
            reads=reads,
            writes=writes,
            function=function,
        )
    return graph


def outcomes(flat, seeds):
    inputs = {(0, name): np.arange(4.0) for name in ("t", "u")}
    runs = [execute(flat, inputs, seed=seed) for seed in seeds]
    return {tuple(float(v) for key in sorted(run) for v in run[key]) for run in runs}


def test_what_passes_the_check_has_one_outcome_in_every_permitted_order():
    passed = 0
    for seed in range(300):
        flat = flat_of(random_accesses(Random(seed)))
        try:
            check_races(flat)
        except RaceError:
            continue
        passed += 1
        assert len(outcomes(flat, range(6))) == 1, seed
    assert passed > 50


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_that_holds_for_any_graph(rng):
    flat = flat_of(random_accesses(rng))
    if len(outcomes(flat, range(6))) > 1:
        with pytest.raises(RaceError):
            check_races(flat)
