"""Collectives of "How To Scale Your Model", simulated, and figures of another simulator for large rings.

The book's forms are for many chips and leave out the smaller of latency and bandwidth; where a test allows for that, it
says how. v5e: 4.5e10 B/s one way a link, 9e10 both ways, 1 us a hop.
"""

from __future__ import annotations

import pytest

from simcore.chips import load_chip
from simcore.collectives import RingTensor, line, one_shot, ring, torus
from simcore.collectives.all_to_all import all_to_all
from simcore.collectives.closed_forms import ring_one_way_ps
from simcore.running import run
from tests.collective_checks import chips

V5E = load_chip("v5e")
NO_LATENCY = V5E.replace(ici_hop_latency_s=0)


def time_s(graph, chip=V5E):
    return run(graph, chip=chip, ideal=True).time_s


def gather(mesh, array_bytes, wraps=True, chip=V5E, **options):
    """Time of an AllGather of ``array_bytes`` over all axes of ``mesh``."""
    devices = 1
    for size in mesh.values():
        devices *= size
    graph, cls = chips(mesh, {"t": (1,)}, wraps)
    tensor = RingTensor("t", array_bytes // devices, 2)
    if wraps:
        torus.all_gather(cls, "c", tuple(mesh), tensor, direction="both", **options)
    else:
        line.all_gather(cls, "c", "x", tensor, **options)
    return time_s(graph, chip)


class TestShardedMatrices:
    def test_a_shard_under_45_kb_is_bound_by_latency(self):
        """b l: the shard that is sent in the time of a hop."""
        assert gather({"x": 2}, 2 * 2 * 45000, wraps=False) == pytest.approx(2 * (1e-6 + 1e-6) / 2 + 1e-6)
        for shard, latency_share in ((4500, 10 / 11), (45000, 1 / 2), (450000, 1 / 11)):
            hops = 3e-6
            assert hops / gather({"x": 4}, 4 * shard, wraps=False) == pytest.approx(latency_share)

    def test_quiz_two_2048_by_8192_over_four_chips(self):
        """377 us for V = 34 MB (rounded) by V/W; a finite ring of 4 has 3/4 of that."""
        array = 2048 * 8192 * 2
        assert gather({"x": 4}, array, chip=NO_LATENCY) / (3 / 4) == pytest.approx(377e-6, rel=0.02)
        assert gather({"x": 64}, array, chip=NO_LATENCY) == pytest.approx(377e-6, rel=0.03)
        assert gather({"x": 4}, array, wraps=False, chip=NO_LATENCY) == pytest.approx(560e-6, rel=0.002)
        assert gather({"x": 4}, array, wraps=False) == pytest.approx(560e-6 + 3e-6, rel=0.002)

    def test_question_two_a_gather_along_one_axis_and_along_two(self):
        """bf16 [1024, 4096] on 4 x 4 x 4: 2BD/(Y W) = 23 us and 2BD/(2W) = 46 us, of which a finite n has (1 - 1/n)."""
        array = 2 * 1024 * 4096
        assert gather({"x": 4}, array // 4, chip=NO_LATENCY) / (3 / 4) == pytest.approx(23e-6, rel=0.02)
        assert gather({"x": 4, "y": 4}, array, chip=NO_LATENCY) / (15 / 16) == pytest.approx(46e-6, rel=0.02)
        latency = gather({"x": 4, "y": 4}, array) - gather({"x": 4, "y": 4}, array, chip=NO_LATENCY)
        assert latency == pytest.approx(4e-6)

    def test_question_three_256_bytes_over_four_chips_take_two_hops(self):
        assert gather({"x": 4}, 256) == pytest.approx(2e-6, rel=0.01)

    def test_question_seven_the_activations_all_reduce_over_four_chips(self):
        """AR >= 2 (n - 1)/n V/(2 b) of 2 MiB: met with both links busy and no latency; 2 MiB, not 4 x 2 MiB, move."""
        graph, cls = chips({"x": 4}, {"t": (1,)})
        ring.all_reduce(cls, "c", "x", RingTensor("t", 2097152 // 4, 2), direction="both")
        result = run(graph, chip=NO_LATENCY, ideal=True)
        assert result.time_s == pytest.approx(3.4952533333333335e-05, rel=1e-6)
        assert result.bytes == {"ici": 2 * 3 * 2097152}
        mesh, cls = chips({"x": 2, "y": 2}, {"t": (1,)}, wraps=False)  # the same on a 2 x 2 that does not wrap around
        torus.all_reduce(cls, "c", ("x", "y"), RingTensor("t", 2097152 // 4, 2))
        assert time_s(mesh, NO_LATENCY) == pytest.approx(3.4952533333333335e-05, rel=1e-6)

    def test_question_ten_an_all_to_all_moves_half_of_an_all_gather_s_scalars(self):
        n, devices = 4096, 8
        gathered, cls = chips({"x": devices}, {"t": (1,)})
        ring.all_gather(cls, "c", "x", RingTensor("t", n * n // devices, 1))
        exchanged, cls = chips({"x": devices}, {"t": (1,), "out": (1,)})
        all_to_all(cls, "c", "x", RingTensor("t", n * n // devices**2, 1), "out")
        a_link = [run(graph, ideal=True).bytes["ici"] / devices for graph in (gathered, exchanged)]
        assert a_link == [14680064, 7340032]

    def test_64_mib_over_16_chips(self):
        """T_hop = 93 us, 746 us in all by the book's ceil(n/2) hops; 15/16 of it, the antipodal shard being halved."""
        array = 67108864
        assert gather({"x": 16}, array, chip=NO_LATENCY) == pytest.approx(15 / 16 * 0.0007456540444444444, rel=1e-6)
        assert gather({"x": 16}, array) == pytest.approx(15 / 16 * 0.0007456540444444444 + 8e-6, rel=1e-6)
        assert gather({"x": 2}, array, chip=NO_LATENCY) == pytest.approx(8 * 9.320675555555555e-05 / 2, rel=1e-6)

    def test_64_mib_over_16_by_16_chips(self):
        """V/(W axes) = 373 us and l sum(n_i)/2 = 16 us: both count, the first times 1 - 1/256."""
        time = gather({"x": 16, "y": 16}, 67108864)
        assert time == pytest.approx(255 / 256 * 0.0003728270222222222 + 1.6e-05, rel=1e-6)

    def test_the_table_of_costs_for_many_chips(self):
        """V/W, 2V/W and V/(4W) of 64 MiB, without latency: a ring of 64 is within 1/64 of them."""
        array, n = 67108864, 64
        reduced, cls = chips({"x": n}, {"t": (1,)})
        ring.all_reduce(cls, "c", "x", RingTensor("t", array // n, 2), direction="both")
        exchanged, cls = chips({"x": n}, {"t": (1,), "out": (1,)})
        all_to_all(cls, "c", "x", RingTensor("t", array // n // n, 2), "out", direction="both")
        assert gather({"x": n}, array, chip=NO_LATENCY) == pytest.approx(0.0007456540444444444, rel=1 / n)
        assert time_s(reduced, NO_LATENCY) == pytest.approx(0.0014913080888888889, rel=1 / n)
        assert time_s(exchanged, NO_LATENCY) == pytest.approx(0.0001864135111111111, rel=1e-6)

    def test_inference_an_activation_under_360_kb_over_eight_chips_is_bound_by_latency(self):
        """n b l; of 16 x 8192 in int8, 131 kB, hops are the most of the time, and one shot is not yet faster."""
        activation, n = 16 * 8192, 8
        graph, cls = chips({"x": n}, {"t": (1,)})
        ring.all_reduce(cls, "c", "x", RingTensor("t", activation // n, 1), direction="both")
        hops = 2 * 4e-6
        assert hops / time_s(graph) > 1 / 2
        tiny, cls = chips({"x": n}, {"t": (1,)})
        one_shot.all_reduce(cls, "c", "x", RingTensor("t", 4096 // n, 1))
        assert time_s(tiny) == pytest.approx(4e-6 + 3.5 * 4096 / 45e9, rel=1e-6)


class TestLargeRings:
    """SimGrid 3.32 for the same links: V = 67108864 B, 4.5e10 B/s, 1 us, to the digits it prints."""

    @pytest.mark.parametrize(("n", "milliseconds"), [(8, 1.311895), (64, 1.531006), (256, 1.740483)])
    def test_a_one_way_all_gather_takes_as_long_as_in_simgrid(self, n, milliseconds):
        graph, cls = chips({"x": n}, {"t": (1,)})
        ring.all_gather(cls, "c", "x", RingTensor("t", 67108864 // n, 2))
        result = run(graph, ideal=True)
        assert round(result.time_s * 1e3, 6) == milliseconds
        assert result.timeline.makespan_ps == ring_one_way_ps(n, 67108864 // n, 4.5e10, 10**6)
