"""The book's chapter on training: from op graphs whose backward pass is derived, and their ideal simulation.

The layer is the chapter's, In · W_in = Hidden, Hidden · W_out = Out, in bf16 and without an activation. Volumes are the
chapter's: bytes of the whole array of a collective's group, twice for an AllReduce. Its V/W is for many chips: of n a
ring has (n - 1)/n, and a test divides by that. It leaves latency out, so that is simulated without.
"""

import pytest

from simcore.chips import load_chip
from simcore.dtypes import bytes_of
from simcore.layout import Mesh
from simcore.opgraph import OpGraph
from simcore.opgraph.backward import Backward
from simcore.opgraph.backward_operations import OuterProduct
from simcore.opgraph.operations import Collective, Einsum
from simcore.running import run

V5P = load_chip("v5p").replace(ici_hop_latency_s=0, vpu_flops_per_s=1e18)
LAYOUTS = {
    "dp": ("In[B_X, D]", "W_in[D, F]", "W_out[F, D]"),
    "fsdp": ("In[B_X, D]", "W_in[D_X, F]", "W_out[F, D_X]"),
    "tp": ("In[B, D_Y]", "W_in[D, F_Y]", "W_out[F_Y, D]"),
    "mixed": ("In[B_X, D_Y]", "W_in[D_X, F_Y]", "W_out[F_Y, D_X]"),
}


def layer(plan, *, b, d, f, x=1, y=1):
    """Forward and backward of a layer, and the number of forward operations."""
    g = OpGraph(plan, Mesh.of({"X": x, "Y": y}), {"B": b, "D": d, "F": f})
    spec, w_in, w_out = LAYOUTS[plan]
    given, w_in, w_out = g.input(spec), g.weight(w_in), g.weight(w_out)

    def gathered(weight):
        return g.all_gather(weight, "X", rows=1) if "X" in weight.layout.axes else weight

    whole = g.all_gather(given, "Y") if "Y" in given.layout.axes else given
    hidden = g.einsum("Hidden", whole, gathered(w_in))
    out = g.einsum("Out", hidden, gathered(w_out))
    done = g.reduce_scatter(out, "Y", "D") if out.layout.partial else out
    forward = len(g.body)
    back = g.input(str(done.layout).replace(done.name, "dOut"))
    backward = Backward(g, lambda tensor, operation: True)
    backward.run(done, back, given.name)
    backward.to(given)
    return g, forward


def volume(g, operations):
    total = 0
    for operation in operations:
        if isinstance(operation, Collective):
            whole = operation.out if operation.kind == "AllGather" else operation.source
            rows, columns = g.local_rows_columns(whole)
            total += bytes_of(rows * columns, whole.dtype) * (2 if operation.kind == "AllReduce" else 1)
    return total


TABLE = {"b": 4096, "d": 1024, "f": 4096}
WAYS = {"dp": {"x": 8}, "fsdp": {"x": 8}, "tp": {"y": 4}, "mixed": {"x": 8, "y": 4}}


@pytest.mark.parametrize(
    ("plan", "forward", "backward"),
    [
        ("dp", 0, 33_554_432),
        ("fsdp", 16_777_216, 33_554_432),
        ("tp", 16_777_216, 16_777_216),
        # The table's mixed row counts 8 B D / X, where sharing the forward's gather, as its TP row does, leaves 4.
        ("mixed", 6_291_456, 12_582_912 - 2_097_152),
    ],
)
def test_the_table_of_communication_follows_from_the_layouts(plan, forward, backward):
    g, first = layer(plan, **TABLE, **WAYS[plan])
    assert volume(g, g.body[:first]) == forward
    assert volume(g, g.body[first:]) == backward


def work_s(g, operations, chip):
    """Seconds of the matmuls at the chip's peak."""
    flops = 0
    for operation in operations:
        if isinstance(operation, Einsum):
            rows, contracted = g.local_rows_columns(operation.left)
            flops += 2 * rows * contracted * g.local_rows_columns(operation.out)[1]
        elif isinstance(operation, OuterProduct):
            rows, m = g.local_rows_columns(operation.left)
            flops += 2 * rows * m * g.local_rows_columns(operation.right)[1]
    return flops / chip.peak("bf16")


@pytest.mark.parametrize(
    ("plan", "sizes", "part", "math_s", "comms_s"),
    [
        ("dp", {"b": 4_194_304, "x": 1024}, "backward", 0.016768151186126363, 0.010439156622222221),
        ("fsdp", {"b": 4_194_304, "x": 1024}, "forward", 0.008384075593063181, 0.005219578311111111),
        ("tp", {"b": 4096, "y": 8}, "forward", 0.0010480094491328977, 0.0007456540444444444),
    ],
)
def test_the_times_of_a_layer(plan, sizes, part, math_s, comms_s):
    """D = 8192, F = 28672 on v5p, 180 GB/s both ways along an axis."""
    g, first = layer(plan, d=8192, f=28672, **sizes)
    operations = g.body[:first] if part == "forward" else g.body[first:]
    assert work_s(g, operations, V5P) == pytest.approx(math_s, rel=1e-9)
    assert volume(g, operations) / 180e9 == pytest.approx(comms_s, rel=1e-9)


@pytest.mark.parametrize("axes", [1, 2])
def test_the_batch_per_chip_at_which_data_parallelism_is_bound_by_communication(axes):
    """2550 tokens a chip on v5p with one axis, half of that with two: there the links are busy as long as the MXU."""
    ways, bound = 16, 2550 // axes
    mesh = {"X": ways} if axes == 1 else {"X": 4, "Z": 4}
    split = "_{" + ",".join(mesh) + "}"

    def links_over_math(per_chip):
        g = OpGraph("layer", Mesh.of(mesh), {"B": per_chip * ways, "D": 4096, "F": 8192})
        given = g.input(f"In[B{split}, D]")
        hidden = g.einsum("Hidden", given, g.weight("W_in[D, F]"))
        out = g.einsum("Out", hidden, g.weight("W_out[F, D]"))
        backward = Backward(g, lambda tensor, operation: True)
        backward.run(out, g.input(f"dOut[B{split}, D]"), "In")
        backward.to(given)
        return run(g, chip=V5P, ideal=True).bounds_s["ici"] / work_s(g, g.body[2:], V5P)

    assert links_over_math(bound) == pytest.approx((ways - 1) / ways, rel=0.01)
    assert links_over_math(2 * bound) == pytest.approx((ways - 1) / ways / 2, rel=0.01)
