"""What the tests of collectives share: a graph of one collective, its ideal time, and its values in many orders."""

from __future__ import annotations

import itertools
import math

import numpy as np

from simcore.chips import load_chip
from simcore.graph import TaskGraph
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.running import simulate

BANDWIDTH, HOP_PS = 45e9, 10**6
"""v5e: one-way bytes/s of a link, and a hop's latency"""
NAN = np.nan


def flat_on(graph, ideal=True, chip="v5e"):
    return unroll(graph, Hardware(load_chip(chip), ideal))


def ideal_ps(graph, chip="v5e"):
    """The ideal model's makespan."""
    return simulate(flat_on(graph, True, chip)).makespan_ps


def chips(mesh, tensors, wraps=True):
    """A graph with one class of chips over ``mesh`` and persistent tensors (name -> shape) of 8-byte elements."""
    graph = TaskGraph("collective")
    cls = graph.entity_class("chip", mesh=mesh, wraps=wraps)
    for name, shape in tensors.items():
        cls.tensor(name, bytes=8 * math.prod(shape), shape=shape, persistent=True)
    return graph, cls


def coordinates(mesh):
    """Every chip's coordinates, in the order of the chips."""
    return list(itertools.product(*(range(size) for size in mesh.values())))


def assert_values(graph, inputs, wanted, seed=0, chip="v5e", orders=2):
    """No race, and in random permitted orders and the simulated one the values are ``wanted`` where that is no NaN."""
    for ideal in (True, False):
        flat = flat_on(graph, ideal, chip)
        check_races(flat)
        drawn = [{"seed": seed + 7 * n} for n in range(orders)]
        for order in [*drawn, {"schedule": simulate(flat), "seed": seed}]:
            values = execute(flat, inputs, **order)
            for key, array in wanted.items():
                known = ~np.isnan(array)
                assert np.array_equal(values[key][known], array[known]), (key, order)


def gathered(rng, sizes, lead=()):
    """Inputs and wanted values of an AllGather of shards of ``sizes``: chip c knows its own shard only."""
    whole = rng.integers(-9, 10, (*lead, sum(sizes))).astype(float)
    ends = np.cumsum([0, *sizes])
    inputs = {}
    for chip in range(len(sizes)):
        own = np.full(whole.shape, NAN)
        mine = slice(ends[chip], ends[chip + 1])
        own[..., mine] = whole[..., mine]
        inputs[chip, "t"] = own
    return inputs, {(chip, "t"): whole for chip in range(len(sizes))}


def summed(rng, sizes, lead=(), everywhere=False):
    """Inputs and wanted values of a ReduceScatter, or of an AllReduce with ``everywhere``; sums are exact."""
    own = rng.integers(-9, 10, (len(sizes), *lead, sum(sizes))).astype(float)
    total, ends, wanted = own.sum(axis=0), np.cumsum([0, *sizes]), {}
    for chip in range(len(sizes)):
        wanted[chip, "t"] = total.copy()
        if not everywhere:
            wanted[chip, "t"][...] = NAN
            mine = slice(ends[chip], ends[chip + 1])
            wanted[chip, "t"][..., mine] = total[..., mine]
    return {(chip, "t"): own[chip] for chip in range(len(sizes))}, wanted
