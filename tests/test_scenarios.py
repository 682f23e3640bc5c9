"""The scenarios show what they are for."""

import pytest

from simcore.collectives.closed_forms import pipeline_ps
from simcore.scenario import run_scenario


def simulate(scenario, chip=None, ideal=True, **parameters):
    return run_scenario(scenario, chip=chip, ideal=ideal, parameters=parameters)


@pytest.mark.parametrize("tiles", [1, 2, 4, 5, 8, 64])
def test_two_buffers_hide_all_but_one_tile(tiles):
    result = simulate("double_buffering", tiles=tiles)
    assert result.timeline.makespan_ps == 400_000_000 + 200_000_000 // tiles
    assert result.extra["closed_form_s"] == result.time_s
    one = simulate("double_buffering", tiles=tiles, buffers=1)
    assert one.timeline.makespan_ps == 600_000_000


@pytest.mark.parametrize(("load", "compute"), [("0.2ms", "0.4ms"), ("0ms", "1ms"), ("1ms", "0ms"), ("1us", "1us")])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_the_pipeline_takes_its_closed_form_whatever_is_longer(load, compute, buffers):
    result = simulate("double_buffering", load=load, compute=compute, tiles=7, buffers=buffers, issue_cost="3us")
    assert result.time_s == result.extra["closed_form_s"]


def test_an_issue_cost_makes_the_best_number_of_tiles_finite():
    for buffers in (2, 3, 64):
        times = {
            tiles: simulate("double_buffering", tiles=tiles, buffers=buffers, issue_cost="1us").time_s
            for tiles in (1, 2, 4, 8, 16, 32, 64, 128)
        }
        assert min(times, key=times.__getitem__) == 16
        assert times[16] == 428.5e-6


def test_the_pipelines_formula():
    assert pipeline_ps(8, 50, 25) == 8 * 50 + 25
    assert pipeline_ps(8, 50, 25, buffers=1) == 8 * 75


def test_tile_reuse_reads_weights_32_mb_one_way_and_8_mb_the_other():
    inputs_outer = simulate("tile_reuse", order="inputs_outer")
    weights_outer = simulate("tile_reuse", order="weights_outer")
    reads = [result.bytes_by_tensor["hbm_read"] for result in (inputs_outer, weights_outer)]
    assert [by["B"] for by in reads] == [32_000_000, 8_000_000]
    # The price of reading weights once: inputs are read once for each of the two weight tiles.
    assert reads[1]["A"] == 2 * reads[0]["A"]
    assert inputs_outer.extra["weight_read_bytes"] == 32_000_000
    assert weights_outer.extra["input_reads"] == 2


def test_with_room_for_both_tiles_the_weights_stay():
    result = simulate("tile_reuse", order="inputs_outer", room=2)
    assert result.bytes_by_tensor["hbm_read"]["B"] == 8_000_000
    assert simulate("tile_reuse", order="weights_outer", input_room=4).extra["input_reads"] == 1


def test_which_order_is_faster_is_the_simulations_answer():
    few_rows = [simulate("tile_reuse", order=order, rows=8).time_s for order in ("inputs_outer", "weights_outer")]
    assert few_rows[1] < few_rows[0] / 2


def test_roofline_intensity_of_a_cube_and_its_limit():
    assert simulate("roofline").extra["intensity_flops_per_byte"] == pytest.approx(1024 / 3, rel=1e-9)
    long = simulate("roofline", m=1_000_000).extra["intensity_flops_per_byte"]
    assert long == pytest.approx(512, rel=1e-3)
    assert long < 512


@pytest.mark.parametrize(("m", "intensity"), [(1, 0.9995119570522206), (8, 7.968871595330739), (64, 62.06060606060606)])
def test_intensity_of_few_rows_is_about_their_number(m, intensity):
    assert simulate("roofline", m=m, k=4096, n=4096).extra["intensity_flops_per_byte"] == pytest.approx(intensity)


@pytest.mark.parametrize("ideal", [True, False])
def test_simulated_matmuls_lie_under_the_roof_and_approach_it_as_tiles_double_buffer(ideal):
    for m in (16, 256, 4096):
        shares = []
        for buffers in (1, 2):
            result = simulate("roofline", ideal=ideal, m=m, k=4096, n=4096, buffers=buffers)
            shares.append(result.flops / result.time_s / result.extra["roof_flops_per_s"])
        assert shares[0] <= shares[1] <= 1
    if ideal:
        assert shares[1] > 0.97


def test_int8_has_twice_the_peak_and_twice_the_intensity():
    result = simulate("roofline", dtype="int8")
    assert result.extra["intensity_flops_per_byte"] == pytest.approx(2 * 1024 / 3)
    assert result.extra["roof_flops_per_s"] == 3.94e14


@pytest.mark.parametrize(("ring", "printed_ms"), [(8, "1.311895"), (64, "1.531006"), (256, "1.740483")])
def test_a_one_way_all_gather_takes_what_an_independent_network_simulator_gives(ring, printed_ms):
    """SimGrid 3.32 on the same links: 67,108,864 bytes, 45 GB/s, 1 us a hop."""
    result = simulate("ring_allgather", ring=ring, bytes=2**26, link_bandwidth="45GB/s", hop_latency="1us")
    assert f"{result.time_s * 1e3:.6f}" == printed_ms
    assert result.time_s == result.extra["closed_form_s"]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("direction", ["one_way", "both"])
@pytest.mark.parametrize("ring", [1, 2, 3, 4, 5, 8, 16])
def test_rings_take_their_closed_form(collective, direction, ring):
    result = simulate("ring_allgather", ring=ring, bytes=240 * 2 * 840, direction=direction, collective=collective)
    assert result.time_s == result.extra["closed_form_s"]


def test_a_ring_of_one_moves_nothing_and_takes_no_time():
    result = simulate("ring_allgather", ring=1)
    assert result.time_s == 0
    assert result.bytes == {}


def test_an_all_reduce_of_2_mib_on_4_chips_moves_the_volume_of_2_mib():
    """Each of the 4 chips sends 2 (n - 1)/n V, whatever the sum of the partial sums' sizes is."""
    result = simulate("ring_allgather", ring=4, bytes=2**21, collective="all_reduce")
    assert result.bytes == {"ici": 4 * 2 * 3 * 2**21 // 4}


def test_chunks_cut_through():
    whole = simulate("ring_allgather", ring=8, hop_latency="100us")
    chunked = simulate("ring_allgather", ring=8, hop_latency="100us", chunks=64)
    assert chunked.time_s < whole.time_s
    assert chunked.time_s == chunked.extra["closed_form_s"]
