"""A tiled matmul: its values, its traffic, its tiling's choice, and the orders in which weights are read again."""

import itertools

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.errors import GraphError
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.lowering import MatmulShape, Tiling, choose_tiling, matmul_graph
from simcore.lowering.tiling import ORDERS, STATIONARY
from simcore.running import run

V5E = load_chip("v5e")
SHAPE = MatmulShape(5, 7, 6)  # ragged in every dimension for tiles of 2 x 3 x 4


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rooms", [(1, 1, 1), (2, 2, 2), (1, 9, 1), (9, 1, 2), (2, 2, 9), (9, 9, 9)])
def test_every_order_and_room_computes_the_product_and_moves_what_is_said(order, rooms):
    tiling = Tiling(order, 2, 3, 4, *rooms)
    graph = matmul_graph(SHAPE, tiling, V5E)
    flat = unroll(graph, Hardware(V5E, ideal=True))
    check_races(flat)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(5, 7)), rng.normal(size=(7, 6))
    for seed in range(2):
        np.testing.assert_allclose(execute(flat, {(0, "A"): a, (0, "B"): b}, seed=seed)[0, "C"], a @ b)
    result = run(graph, chip=V5E, ideal=True)
    assert sum(result.bytes.values()) == tiling.traffic_bytes(SHAPE)
    assert np.count_nonzero(result.timeline.bytes) == tiling.transfers(SHAPE)
    assert result.flops == SHAPE.flops


def test_weights_are_read_again_for_every_group_of_inputs_unless_they_stay():
    shape = MatmulShape(8, 4, 6)
    short = Tiling("mnk", tile_m=2, tile_k=4, tile_n=3, room_b=1)
    assert (short.passes(shape, "b"), short.working_set(shape, "b"), short.reads(shape, "b")) == (4, 2, 4)
    enough = Tiling("mnk", tile_m=2, tile_k=4, tile_n=3, room_b=2)
    assert enough.reads(shape, "b") == 1
    outside = Tiling("nmk", tile_m=2, tile_k=4, tile_n=3, room_b=1)
    assert (outside.reads(shape, "b"), outside.reads(shape, "a")) == (1, 2)


def test_partial_sums_are_spilled_in_fp32_when_k_is_outside_and_there_is_no_room():
    shape = MatmulShape(4, 8, 4)
    spilling = Tiling("kmn", 2, 2, 2, room_b=1, room_c=1)
    assert spilling.spills(shape) == 3
    # A and C once, B once for each of 2 row tiles, and 3 times the fp32 partial sums out and in.
    assert spilling.traffic_bytes(shape) == 2 * (32 + 2 * 32 + 16) + 3 * 2 * 4 * 16
    assert Tiling("kmn", 2, 2, 2, room_c=4).spills(shape) == 0
    assert Tiling("mnk", 2, 2, 2, room_c=1).spills(shape) == 0


def test_the_chosen_tiling_fits_and_moves_least():
    vmem = 2**20
    shape = MatmulShape(1024, 1024, 1024)
    chosen = choose_tiling(shape, V5E, vmem_bytes=vmem)
    assert chosen.vmem_bytes(shape) <= vmem
    for order, side in itertools.product(ORDERS, (128, 256, 512)):
        other = Tiling(order, side, side, side)
        if other.vmem_bytes(shape) <= vmem:
            assert chosen.traffic_bytes(shape) <= other.traffic_bytes(shape)


def test_with_room_for_everything_each_array_moves_once_and_the_loads_are_cut():
    chosen = choose_tiling(MatmulShape(1024, 1024, 1024), V5E)
    assert chosen.traffic_bytes(MatmulShape(1024, 1024, 1024)) == 3 * 2**21
    assert chosen.tiles(MatmulShape(1024, 1024, 1024)) > 1


@pytest.mark.parametrize("order", STATIONARY)
def test_a_dataflow_is_one_of_its_two_loop_orders(order):
    assert choose_tiling(MatmulShape(512, 512, 512), V5E, order=order).order in STATIONARY[order]


def test_given_sides_are_kept():
    chosen = choose_tiling(MatmulShape(1000, 900, 800), V5E, tile=(100, None, 77))
    assert (chosen.tile_m, chosen.tile_n) == (100, 77)


def test_an_ideal_matmul_lies_between_its_bound_and_twice_it():
    for m in (1, 8, 64, 512, 4096):
        shape = MatmulShape(m, 1024, 1024)
        result = run(matmul_graph(shape, choose_tiling(shape, V5E), V5E), chip=V5E, ideal=True)
        assert result.bound_s <= result.time_s <= 2 * result.bound_s
        assert result.bound_s == pytest.approx(
            max(shape.flops / 1.97e14, sum(shape.bytes(operand) for operand in "abc") / 8.1e11), rel=1e-6
        )


def test_ragged_tiles_cost_a_padded_array_in_the_calibrated_model():
    shape = MatmulShape(130, 129, 129)
    tiling = Tiling("mnk", 130, 129, 129, 1, 1, 1)
    calibrated = run(matmul_graph(shape, tiling, V5E), chip=V5E)
    multiply = calibrated.timeline.rows_of_kind("matmul")
    padded = 2 * 136 * 256 * 256 / (1.97e14 * V5E.efficiency["mxu"]) + 2 * 128 / 1.5e9
    took = (calibrated.timeline.end_ps - calibrated.timeline.start_ps)[multiply].sum() / 1e12
    assert took == pytest.approx(padded, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatmulShape(0, 1, 1), "m is 0; it must be 1 or more"),
        (lambda: MatmulShape(1, -3, 1), "k is -3"),
        (lambda: Tiling("mmk", 1, 1, 1), "loop order 'mmk'"),
        (lambda: Tiling("mnk", 1, 0, 1), "tile_k is 0"),
        (
            lambda: choose_tiling(MatmulShape(8, 8, 8), V5E, order="weights_stationary"),
            "did you mean weight_stationary",
        ),
        (lambda: choose_tiling(MatmulShape(8, 8, 8), V5E, buffers=0), "buffers is 0"),
        (lambda: choose_tiling(MatmulShape(8, 8, 8), V5E, tile=(0, None, None)), "the tile's m is 0"),
        (lambda: choose_tiling(MatmulShape(2**20, 2**20, 2**20), V5E, tile=(2**20, 2**20, 2**20)), "use smaller tiles"),
        (lambda: matmul_graph(MatmulShape(2**15, 2**15, 8), Tiling("mnk", 2**15, 2**15, 8), V5E), "use smaller tiles"),
    ],
)
def test_bad_sizes_are_one_clear_line(make, message):
    with pytest.raises(GraphError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
