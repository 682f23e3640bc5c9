"""Number formats, meshes, the book's notation, what a device holds, and values cut up and put together."""

from __future__ import annotations

import doctest
import importlib
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.dtypes import DTYPE_BITS, DtypeError, bytes_of, dtype_bits, numpy_dtype
from simcore.errors import LayoutError
from simcore.layout import Dim, Mesh, TensorLayout, axis_names, padded_sizes, parse_product, parse_tensor
from simcore.layout.values import shard, unshard

# ---------------------------------------------------------------------------------------------- number formats


def test_block_formats_count_their_scales():
    assert dtype_bits("mxfp4") == 4 + Fraction(8, 32)
    assert dtype_bits("nvfp4") == 4 + Fraction(8, 16)
    assert bytes_of(32, "mxfp4") == 17
    assert bytes_of(16, "nvfp4") == 9


def test_bytes_are_rounded_up_once_for_all_values():
    assert [bytes_of(n, "int4") for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert bytes_of(10**15 + 1, "mxfp4") == -(-(10**15 + 1) * 17 // 32)


def test_a_misspelt_dtype_names_the_nearest():
    with pytest.raises(DtypeError, match="unknown dtype 'bf61': did you mean bf16"):
        dtype_bits("bf61")
    with pytest.raises(DtypeError, match="at least 0, got -1"):
        bytes_of(-1, "bf16")
    with pytest.raises(DtypeError, match="whole number"):
        bytes_of(1.5, "bf16")  # type: ignore[arg-type]


def test_every_dtype_has_a_numpy_stand_in_at_least_as_wide():
    for name in DTYPE_BITS:
        assert numpy_dtype(name).itemsize * 8 >= dtype_bits(name)
    assert numpy_dtype("bf16") == np.float64
    assert numpy_dtype("int8") == np.int32
    with pytest.raises(DtypeError, match="unknown dtype"):
        numpy_dtype("float")


# ------------------------------------------------------------------------------------------------------ meshes


def test_a_mesh_reads_and_prints_and_counts_its_devices():
    mesh = Mesh.parse(" X=4, Y=2 ")
    assert mesh == Mesh.of(X=4, Y=2) == Mesh.parse(str(mesh))
    assert (mesh.size, mesh.shape, mesh.names) == (8, (4, 2), ("X", "Y"))
    assert (mesh.axis_size("X"), mesh.axis_size("XY"), mesh.axis_size(())) == (4, 8, 1)
    assert Mesh.of({"data": 3}, model=2).axis_size("data,model") == 6


def test_the_last_axis_of_a_mesh_varies_fastest():
    assert list(Mesh.of(X=2, Y=2).coordinates()) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_position_along_several_axes_has_the_first_as_the_major():
    mesh = Mesh.of(X=2, Y=3)
    assert [mesh.position(at, ("X", "Y")) for at in mesh.coordinates()] == list(range(6))
    assert mesh.position((1, 2), ("Y", "X")) == 2 * 2 + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X=0", "size of mesh axis X must be at least 1, got 0"),
        ("X=-2", "must be at least 1, got -2"),
        ("X=2,X=3", "axis X twice"),
        ("X=2,Y", "cannot read 'Y' in the mesh 'X=2,Y': expected AXIS=SIZE"),
        ("X=2.5", "cannot read 'X=2.5'"),
        ("XY=2", "'XY' is no name for a mesh axis"),
        ("", "cannot read ''"),
    ],
)
def test_a_mesh_that_cannot_be_says_why(text, message):
    with pytest.raises(LayoutError, match=message):
        Mesh.parse(text)


def test_a_mesh_has_no_axis_that_it_was_not_given():
    with pytest.raises(LayoutError, match=r"the mesh X=4,Y=2 has no axis Z: known: X, Y"):
        Mesh.of(X=4, Y=2).axis_size("XZ")
    with pytest.raises(LayoutError, match="needs at least one axis"):
        Mesh(())
    with pytest.raises(LayoutError, match="whole number, got True"):
        Mesh.of(X=True)
    with pytest.raises(LayoutError, match="named twice"):
        axis_names("XX")


# ---------------------------------------------------------------------------------------------------- notation

AXES = ["X", "Y", "Z", "W", "data", "model"]
DIMS = ["I", "J", "K", "D2", "heads"]


@st.composite
def layouts(draw, axes=tuple(AXES), dims=tuple(DIMS), partial=True):
    """Any layout over some of ``axes`` and ``dims``."""
    names = draw(st.lists(st.sampled_from(dims), unique=True, max_size=4))
    placed: dict[str, list[str]] = {name: [] for name in names}
    sums = []
    for axis in draw(st.permutations(axes)):
        where = draw(st.sampled_from([None, *names, *(["sum"] if partial else [])]))
        if where == "sum":
            sums.append(axis)
        elif where is not None:
            placed[where].append(axis)
    tensor = draw(st.sampled_from(["A", "W_in", "dY", "W1", "A'"]))
    return TensorLayout(tensor, tuple(Dim(name, tuple(split)) for name, split in placed.items()), tuple(sums))


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_what_is_printed_reads_back_as_the_same_layout(layout):
    assert parse_tensor(str(layout)) == layout
    assert parse_tensor(str(layout).replace(" ", "")) == layout
    assert parse_tensor(f"  {layout} ".replace("[", " [ ").replace("]", " ] ")) == layout


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("A[I_X,J_{YZ}]{U_W}", "A[I_X, J_{YZ}]{U_W}"),
        ("A[IXY, J]", "A[I_{XY}, J]"),
        ("A[I_XY,J]", "A[I_{XY}, J]"),
        ("A[Iₓ, Jᵧ]", "A[I_X, J_Y]"),
        ("A[Iₓᵧ]{Uᵥ}", "A[I_{XY}]{U_V}"),
        ("A[I_{X}]", "A[I_X]"),
        ("A[I_{X,Y}]{UZ}", "A[I_{XY}]{U_Z}"),
        ("A[I_{X data}]", "A[I_{X,data}]"),
        ("A[heads_model, D]", "A[heads_model, D]"),
        ("C[I]{U_YX}", "C[I]{U_{XY}}"),
        ("s[]", "s[]"),
    ],
)
def test_every_way_of_writing_a_layout_prints_canonically(text, canonical):
    assert str(parse_tensor(text)) == canonical


@pytest.mark.parametrize(
    "text", ["A[I_X,J]·B[J,K_Y]->C[I,K]", "A[I_X, J] * B[J, K_Y] → C[I, K]", "A[IX,J]@B[J,Kᵧ]->C[I,K]"]
)
def test_products_read_however_the_dot_and_arrow_are_written(text):
    product = parse_product(text)
    assert str(product) == "A[I_X, J] · B[J, K_Y] -> C[I, K]"
    assert parse_product(str(product)) == product


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[I]", r"position 1: expected a tensor's name, such as A, got '\['"),
        ("A I", r"position 3: expected '\[' and the dimensions, got 'I'"),
        ("A[I J]", r"position 5: expected ',' or '\]', got 'J'"),
        ("A[I_X, J", r"position 9: expected ',' or '\]', got the end"),
        ("A[I_X, ]", r"position 8: expected a dimension, such as I or I_X, got '\]'"),
        ("A[I_]", r"position 5: expected a mesh axis, such as X, got '\]'"),
        ("A[I_{}]", r"position 6: expected a mesh axis, such as X, got '}'"),
        ("A[I_{X,}]", r"position 8: expected a mesh axis, such as X, got '}'"),
        ("A[I_{X]", r"position 7: expected a mesh axis, ',' or '}', got '\]'"),
        ("A[I]{X}", r"position 6: expected U and the mesh axes of the partial sums, such as {U_X}, got 'X'"),
        ("A[I]{U}", r"position 7: expected the mesh axes of the partial sums, such as {U_X}, got '}'"),
        ("A[I]{U_X", r"position 9: expected '}', got the end"),
        ("A[I] B", r"position 6: expected nothing more, got 'B'"),
        ("A[I_X, J_X]", r"A\[I_X, J_X\]: mesh axis X splits both I and J"),
        ("A[I_XX]", "mesh axis X is named twice"),
        ("A[I_X]{U_X}", "mesh axis X splits I and carries partial sums too"),
        ("A[I, I]", "dimension I appears twice"),
    ],
)
def test_a_layout_that_cannot_be_read_shows_where_and_what_was_expected(text, message):
    with pytest.raises(LayoutError, match=message):
        parse_tensor(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A[I]", "position 5: expected '·' and the second operand, got the end"),
        ("A[I,J] B[J]", "position 8: expected '·' and the second operand, got 'B'"),
        ("A[I,J] · B[J]", "expected '->' and the output, got the end"),
        ("A[I,J] · B[J] ->", "position 17: expected a tensor's name"),
        ("A[I,J] · A[J,K] -> C[I,K]", "A names two of the three tensors"),
    ],
)
def test_a_product_that_cannot_be_read_shows_where_and_what_was_expected(text, message):
    with pytest.raises(LayoutError, match=message):
        parse_product(text)


# ------------------------------------------------------------------------------------- what a device holds


def test_the_books_first_quiz_a_shard_of_xy_replicated_over_z():
    layout, mesh, sizes = parse_tensor("A[I_XY,J]"), Mesh.of(X=2, Y=8, Z=2), {"I": 128, "J": 2048}
    assert layout.bytes_per_device(sizes, mesh, "int8") == 16_384
    assert layout.total_bytes(sizes, mesh, "int8") == 524_288 == 128 * 2048 * mesh.axis_size("Z")


def test_the_books_local_shapes():
    mesh, sizes = Mesh.of(X=4, Y=2), {"B": 8, "D": 2048, "F": 8192}
    assert parse_tensor("A[B_X,D_Y]").local_shape(sizes, mesh) == (2, 1024)
    assert parse_tensor("W[D,F_Y]").local_shape(sizes, mesh) == (2048, 4096)


def test_an_array_split_over_x_alone_is_held_once_for_each_device_of_the_other_axes():
    mesh, sizes = Mesh.of(X=4, Y=8, Z=2), {"I": 8, "J": 2, "K": 2}
    layout = parse_tensor("A[I_X,J,K]")
    assert layout.replication(mesh) == 16
    assert layout.total_bytes(sizes, mesh, "bf16") == 16 * bytes_of(8 * 2 * 2, "bf16")


def test_partial_sums_cover_all_indices_but_are_no_replicas():
    layout, mesh = parse_tensor("A[I,J]{U_X}"), Mesh.of(X=4, Y=2)
    assert layout.local_shape({"I": 8, "J": 8}, mesh) == (8, 8)
    assert layout.is_whole
    assert not layout.is_complete
    assert layout.replication(mesh) == 2


def test_coverage_and_completeness_are_two_facts():
    facts = {text: (parse_tensor(text).is_whole, parse_tensor(text).is_complete) for text in FOUR}
    assert facts == {
        "A[I]": (True, True),
        "A[I_X]": (False, True),
        "A[I]{U_X}": (True, False),
        "A[I_X]{U_Y}": (False,) * 2,
    }


FOUR = ["A[I]", "A[I_X]", "A[I]{U_X}", "A[I_X]{U_Y}"]


def test_of_i_xy_the_devices_hold_consecutive_blocks_x_major():
    layout, mesh, sizes = parse_tensor("A[I_XY]"), Mesh.of(X=2, Y=3), {"I": 12}
    starts = [layout.shard_slices(at, sizes, mesh)[0].start for at in mesh.coordinates()]
    assert starts == [0, 2, 4, 6, 8, 10]
    swapped = [parse_tensor("A[I_YX]").shard_slices(at, sizes, mesh)[0].start for at in mesh.coordinates()]
    assert swapped == [0, 4, 8, 2, 6, 10]


@given(layouts(axes=("X", "Y", "Z"), partial=False))
@settings(max_examples=40, deadline=None)
def test_shards_cover_every_index_once_for_each_replica(layout):
    mesh = Mesh.of(X=2, Y=3, Z=1)
    sizes = dict.fromkeys(layout.dim_names, 6)
    seen = np.zeros(layout.global_shape(sizes), dtype=int)
    for at in mesh.coordinates():
        seen[layout.shard_slices(at, sizes, mesh)] += 1
    assert (seen == layout.replication(mesh)).all()


def test_a_dimension_that_does_not_divide_is_an_error_that_prices_the_padding():
    layout, mesh, sizes = parse_tensor("A[H_X, D]"), Mesh.of(X=3), {"H": 40, "D": 128}
    with pytest.raises(LayoutError) as error:
        layout.local_shape(sizes, mesh)
    assert str(error.value) == (
        "A[H_X, D]: H = 40 does not divide over X (3 ways): make it a multiple of 3, or pad it to 42; padding the "
        "tensor would add 256 elements (5 %)"
    )


def test_padding_when_asked_for_keeps_the_indices_and_shortens_the_last_shard():
    layout, mesh, sizes = parse_tensor("A[H_X, D]"), Mesh.of(X=3), {"H": 40, "D": 128}
    assert layout.local_shape(sizes, mesh, pad=True) == (14, 128)
    lengths = [layout.shard_slices((x,), sizes, mesh, pad=True)[0] for x in range(3)]
    assert lengths == [slice(0, 14), slice(14, 28), slice(28, 40)]
    assert layout.total_bytes(sizes, mesh, "bf16", pad=True) == 42 * 128 * 2


def test_more_devices_than_rows_leave_some_with_padding_only():
    layout, mesh = parse_tensor("A[I_X]"), Mesh.of(X=4)
    assert layout.shard_slices((3,), {"I": 2}, mesh, pad=True) == (slice(2, 2),)


def test_padded_sizes_divide_in_every_layout():
    mesh = Mesh.of(X=4, Y=3)
    sizes = padded_sizes([parse_tensor("A[I_X, J]"), parse_tensor("C[I_Y, K]")], {"I": 10, "J": 5, "K": 7}, mesh)
    assert sizes == {"I": 12, "J": 5, "K": 7}


def test_what_a_layout_does_not_have_is_an_error_that_names_it():
    layout, mesh = parse_tensor("A[I_X, J]"), Mesh.of(X=4)
    with pytest.raises(LayoutError, match=r"A\[I_X, J\]: no size for dimension J: known: I, K"):
        layout.local_shape({"I": 4, "K": 4}, mesh)
    with pytest.raises(LayoutError, match="the size of J must be a whole number of at least 1, got 0"):
        layout.local_shape({"I": 4, "J": 0}, mesh)
    with pytest.raises(LayoutError, match=r"A\[I_X, J\]: the mesh Y=4 has no axis X"):
        layout.local_shape({"I": 4, "J": 4}, Mesh.of(Y=4))
    with pytest.raises(LayoutError, match="has no axis X"):
        layout.replication(Mesh.of(Y=4))
    with pytest.raises(LayoutError, match=r"no device at \(4,\)"):
        layout.shard_slices((4,), {"I": 4, "J": 4}, mesh)
    with pytest.raises(LayoutError, match=r"no device at \(0, 0\)"):
        layout.shard_slices((0, 0), {"I": 4, "J": 4}, mesh)
    with pytest.raises(LayoutError, match="has no dimension K: known: I, J"):
        layout.dim("K")
    with pytest.raises(LayoutError, match="no name for a dimension"):
        Dim("d_model")
    with pytest.raises(LayoutError, match="no name for a tensor"):
        TensorLayout("", ())


# ------------------------------------------------------------------------------------------------------ values


def cut(array, layout, mesh, at):
    """The local array by repeated halving: each mesh axis in turn splits what the one before it left."""
    where = dict(zip(mesh.names, at, strict=True))
    for index, dim in enumerate(layout.dims):
        for axis in dim.axes:
            array = np.split(array, mesh.axis_size(axis), axis=index)[where[axis]]
    return array


@given(layouts(axes=("X", "Y", "Z")), st.integers(0, 3), st.sampled_from([(2, 3, 1), (2, 2, 2), (1, 1, 4)]))
@settings(max_examples=50, deadline=None)
def test_shards_put_together_are_the_array(layout, seed, shape):
    mesh = Mesh.of(dict(zip("XYZ", shape, strict=True)))
    size = math.prod(shape)
    array = np.arange(size ** len(layout.dims)).reshape((size,) * len(layout.dims))
    shards = shard(array, layout, mesh, seed=seed)
    if layout.is_complete:
        for at, local in shards.items():
            assert np.array_equal(local, cut(array, layout, mesh, at))
    assert np.array_equal(unshard(shards, layout, mesh), array)


@given(layouts(axes=("X", "Y")), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_padded_shards_put_together_are_the_array(layout, size):
    mesh = Mesh.of(X=2, Y=3)
    array = np.random.default_rng(size).normal(size=(size,) * len(layout.dims))
    shards = shard(array, layout, mesh, pad=True)
    sizes = dict.fromkeys(layout.dim_names, size)
    assert all(local.shape == layout.local_shape(sizes, mesh, pad=True) for local in shards.values())
    assert np.allclose(unshard(shards, layout, mesh, sizes), array, rtol=1e-12, atol=1e-12)


def test_partial_sums_are_random_but_the_same_for_the_same_seed():
    layout, mesh, array = parse_tensor("A[I]{U_X}"), Mesh.of(X=3), np.arange(6.0)
    first, again, other = (shard(array, layout, mesh, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[at], again[at]) for at in first)
    assert not np.array_equal(first[0,], other[0,])
    assert not any(np.allclose(local, array) for local in first.values())
    assert np.allclose(sum(first.values()), array)


def test_a_nan_stays_a_nan_in_its_place_and_nowhere_else():
    mesh = Mesh.of(X=2, Y=2)
    array = np.array([1.0, np.nan, 3.0, 4.0])
    for text in ("A[I]", "A[I_X]", "A[I]{U_X}", "A[I_Y]{U_X}"):
        layout = parse_tensor(text)
        back = unshard(shard(array, layout, mesh), layout, mesh)
        assert np.allclose(back, array, equal_nan=True), text


def test_replicas_that_differ_are_an_error_that_says_where():
    layout, mesh = parse_tensor("A[I_X]"), Mesh.of(X=2, Y=2)
    shards = shard(np.arange(4.0), layout, mesh)
    shards[1, 1] = shards[1, 1] + np.array([0.0, 0.5])
    with pytest.raises(LayoutError) as error:
        unshard(shards, layout, mesh)
    assert str(error.value) == (
        "A[I_X]: devices (1, 0) and (1, 1) should hold the same values, but differ in 1 of 2: 3.0 and 3.5 at local "
        "index (1,)"
    )


def test_a_nan_in_one_replica_only_is_a_difference():
    layout, mesh = parse_tensor("A[I]"), Mesh.of(X=2)
    shards = shard(np.arange(4.0), layout, mesh)
    shards[1,][2] = np.nan
    with pytest.raises(LayoutError, match=r"2\.0 and nan at local index"):
        unshard(shards, layout, mesh)


def test_replicas_summed_in_another_order_agree():
    layout, mesh = parse_tensor("A[I]"), Mesh.of(X=2)
    shards = {(0,): np.array([0.1 + 0.2 + 0.3, 1.0]), (1,): np.array([0.3 + 0.2 + 0.1, 1.0])}
    assert shards[0,][0] != shards[1,][0]
    assert unshard(shards, layout, mesh)[0] == shards[0,][0]


def test_shards_that_are_missing_misshapen_or_too_many_are_errors():
    layout, mesh, array = parse_tensor("A[I_X]"), Mesh.of(X=2), np.arange(4)
    shards = shard(array, layout, mesh)
    with pytest.raises(LayoutError, match=r"device \(1,\) has no shard"):
        unshard({(0,): shards[0,]}, layout, mesh)
    with pytest.raises(LayoutError, match=r"device \(1,\) has shape \(3,\), should be \(2,\)"):
        unshard({(0,): shards[0,], (1,): np.arange(3)}, layout, mesh)
    with pytest.raises(LayoutError, match=r"a shard for \(2,\), which is no device"):
        unshard({**shards, (2,): shards[0,]}, layout, mesh)
    with pytest.raises(LayoutError, match="1 dimensions, the array 2"):
        shard(np.zeros((2, 2)), layout, mesh)
    with pytest.raises(LayoutError, match="does not divide"):
        shard(np.zeros(3), layout, mesh)
    with pytest.raises(LayoutError, match="cannot be split into sums"):
        shard(np.array([True, False]), parse_tensor("A[I]{U_X}"), mesh)


# ---------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize(
    "module", ["dtypes", "layout.mesh", "layout.layout", "layout.notation", "layout.planner", "layout.rules"]
)
def test_the_examples_in_docstrings_do_as_they_say(module):
    assert doctest.testmod(importlib.import_module(f"simcore.{module}")).failed == 0


def test_the_examples_in_the_guide_do_as_they_say():
    guide = Path(__file__).parents[1] / "docs" / "layouts.md"
    result = doctest.testfile(str(guide), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 10
