"""The scenarios of collectives: each against its closed form or bound, and that their pictures are drawn."""

import pytest

from simcore.chips import load_chip
from simcore.errors import SimcoreError
from simcore.scenario import load_scenario, run_scenario
from simcore.views.topology_plot import traffic_of


def simulate(name, ideal=True, chip=None, **parameters):
    return run_scenario(name, ideal=ideal, chip=chip, parameters=parameters)


@pytest.mark.parametrize("ring", [2, 3, 8, 64])
@pytest.mark.parametrize("direction", ["one_way", "both"])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_ring_collectives_take_their_closed_form(ring, direction, collective):
    result = simulate("ring_collectives", ring=ring, bytes=ring * 2**14, direction=direction, collective=collective)
    assert result.time_s == result.extra["closed_form_s"]


def test_hops_count_below_the_crossover_and_bytes_above():
    chip = load_chip("v5e")
    small, large = (simulate("ring_collectives", ring=16, bytes=size) for size in (2**12, 2**28))
    assert (small.extra["regime"], large.extra["regime"]) == ("latency", "bandwidth")
    assert small.time_s == pytest.approx(15 * chip.ici_hop_latency_s, rel=0.01)
    assert large.time_s == pytest.approx(15 / 16 * 2**28 / chip.ici_link_bandwidth_bytes_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("ring", "both", "one_way"),
    [(2, 1 / 2, 1 / 2), (4, 1 / 3, 1 / 2), (8, 2 / 7, 1 / 2), (16, 4 / 15, 1 / 2), (64, 16 / 63, 1 / 2)],
)
def test_an_all_to_all_takes_n_over_4_n_minus_1_of_an_all_gather(ring, both, one_way):
    """n²/8 blocks over a link against (n - 1)/2 shards of n blocks each; hops are left out by a large array."""
    for direction, factor in (("both", both), ("one_way", one_way)):
        result = simulate("all_to_all", ring=ring, bytes=ring**2 * 2**26, direction=direction)
        assert result.time_s == result.extra["closed_form_s"]
        assert result.extra["factor"] == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("axes", ["x", "xy", "xyz"])
def test_equal_axes_that_wrap_reach_the_bandwidth_bound_but_for_hops(axes):
    result = simulate("multi_axis", slice="4x4x4", axes=axes, bytes=3 * 2**26, direction="one_way")
    hops = len(axes) * 3 * load_chip("v5p").ici_hop_latency_s
    assert result.time_s == pytest.approx(result.extra["bandwidth_bound_s"] + hops, rel=1e-6)


def test_unequal_axes_are_not_below_the_bound():
    result = simulate("multi_axis", slice="4x8x8", axes="xyz", bytes=3 * 2**26)
    assert 1 < result.extra["over_bandwidth_bound"] < 2


def test_a_slice_of_8_by_16_on_v5e_has_rings_on_the_16_axis_only():
    line, ring = (
        simulate("multi_axis", chip="v5e", slice="8x16", axes=axis, bytes=2**24, direction="both") for axis in "xy"
    )
    assert line.extra["lines"] == ["x"]
    assert ring.extra["lines"] == []
    assert line.time_s > 1.8 * ring.time_s


def test_the_drawing_has_the_traffic_of_every_link_and_the_bytes_add_up():
    result = simulate("multi_axis", slice="4x4x4", axes="xz", bytes=3 * 2**20)
    traffic = traffic_of(result)
    assert {unit for (_, unit), size in traffic.items() if size} == {"ici_x+", "ici_x-", "ici_z+", "ici_z-"}
    assert sum(traffic.values()) == result.bytes["ici"] == 64 * 15 * 3 * 2**20 // 16


def test_adding_up_inside_a_slice_first_sends_less_across():
    ways = {way: simulate("cross_slice", slices=4, slice="4x4", way=way) for way in ("hierarchical", "flat")}
    for way, result in ways.items():
        crossed = result.bytes["dcn_share"] / result.chips
        assert crossed == pytest.approx(result.extra["crossing_bytes_per_chip"]), way
        assert result.time_s > result.extra["network_bound_s"]
    assert ways["flat"].time_s > 3 * ways["hierarchical"].time_s


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("chips_per_link", [1, 4])
def test_what_comes_from_the_host_is_hidden_as_far_as_buffers_allow(buffers, chips_per_link):
    tokens = 16384 * chips_per_link
    result = simulate("host_offload", layers=8, buffers=buffers, chips_per_link=chips_per_link, tokens=tokens)
    load, compute = result.extra["pcie_bound_s"] / 8, result.extra["compute_bound_s"] / 8
    latency = load_chip("v5e").pcie_latency_s
    assert compute > load
    if buffers > 1:
        # The first layer's transfer is not hidden, then compute goes on without a break.
        assert result.time_s == pytest.approx(load + latency + 8 * compute, rel=1e-6)
    elif chips_per_link == 1:
        assert result.time_s == pytest.approx(8 * (load + latency + compute), rel=1e-6)


def test_chips_that_share_a_link_wait_for_each_other():
    alone, shared = (simulate("host_offload", chips_per_link=n, tokens=1024) for n in (1, 4))
    assert shared.time_s > 3.9 * alone.time_s


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ring_collectives", {"ring": 4, "rings": (2, 4)}),
        ("all_to_all", {"ring": 4, "bytes": 2**14}),
        ("multi_axis", {"slice": "2x2x2", "axes": "xy", "bytes": 2**14}),
        ("cross_slice", {"slice": "2x2", "bytes": 2**14}),
    ],
)
def test_pictures_are_drawn(name, parameters, tmp_path):
    result = simulate(name, **parameters)
    path = tmp_path / "picture.png"
    load_scenario(name).plot(result, path)
    assert path.stat().st_size > 15_000


@pytest.mark.parametrize("name", ["ring_collectives", "all_to_all", "multi_axis", "cross_slice"])
def test_one_chip_or_slice_takes_no_time(name):
    alone = {
        "ring_collectives": {"ring": 1},
        "all_to_all": {"ring": 1},
        "multi_axis": {"slice": "1x1x1"},
        "cross_slice": {"slices": 1, "slice": "1x1"},
    }
    assert simulate(name, **alone[name]).time_s == 0


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("ring_collectives", {"ring": 3, "bytes": 1000}, "does not cut into 3 equal shards"),
        ("all_to_all", {"ring": 3, "bytes": 1000}, "does not cut into 3² equal blocks"),
        ("multi_axis", {"axes": "w"}, "the slice has no axis 'w'"),
        ("multi_axis", {"axes": "xx"}, "name one or more axes, each once"),
        ("multi_axis", {"slice": "4x4"}, "a slice of v5p has 3 axes, 4x4 has 2"),
        ("multi_axis", {"slice": "4x4xtwo"}, "4x4xtwo"),
        ("cross_slice", {"bytes": 1001}, "does not cut into"),
        ("host_offload", {"chips": 4, "chips_per_link": 3}, "is no divisor of --chips 4"),
    ],
)
def test_bad_input_says_what_would_be_right(name, parameters, message):
    with pytest.raises(SimcoreError) as error:
        simulate(name, **parameters)
    assert message in str(error.value)


def test_a_slice_that_is_not_sold_is_noted_and_simulated():
    result = simulate("multi_axis", chip="v5e", slice="3x5", axes="xy", bytes=15 * 2**12)
    assert any("v5e is not offered as 3x5" in note for note in result.notes)
    assert result.time_s > 0
