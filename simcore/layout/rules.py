"""What operations do to layouts, and which are illegal: each rule a function that gives the resulting layout.

A breach raises `LayoutError` that names the tensor, the mesh axis and the mend. Nothing here knows sizes, chips
or costs. ``axis`` is one mesh axis or several (``"X"``, ``"XY"``, ``("data",)``).

Coverage decides which axes of a split dimension can be gathered: of ``I_{XY}`` device (x, y) has block x |Y| + y,
so gathering Y leaves I_X, but gathering X alone would leave every |Y|-th block, which no layout describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simcore.errors import LayoutError, nearest
from simcore.layout.layout import Dim, TensorLayout, format_axes
from simcore.layout.mesh import axis_names

Axes = str | Iterable[str]


def nonlinear(layout: TensorLayout, operation: str = "a nonlinear operation", *, along: Axes = ()) -> TensorLayout:
    """The layout after an operation that is not linear, such as gelu; ``along`` dimensions it must see whole.

    Softmax or a norm along J needs J unsplit: ``nonlinear(layout, "softmax", along=("J",))``.
    """
    if layout.partial:
        raise LayoutError(
            f"{operation} on partial sums: {layout} is not complete over {format_axes(layout.partial)}, and the sum "
            f"of f(parts) is not f(sum): {_sum_mend(layout)} first"
        )
    for name in (along,) if isinstance(along, str) else along:
        dim = layout.dim(name)
        if dim.axes:
            raise LayoutError(
                f"{operation} along {name}: {layout} splits it over {format_axes(dim.axes)}, so no device sees all "
                f"of it: AllGather {layout.name} over {format_axes(dim.axes)} first"
            )
    return layout


def add(left: TensorLayout, right: TensorLayout) -> TensorLayout:
    """The layout of ``left + right``, under the name of ``left``: both must be laid out alike."""
    _same_coverage(left, right, "add")
    if left.partial != right.partial:
        for one, other in ((left, right), (right, left)):
            missing = tuple(axis for axis in one.partial if axis not in other.partial)
            if missing:
                raise LayoutError(
                    f"cannot add {left} and {right}: {one.name} holds partial sums over {format_axes(missing)} and "
                    f"{other.name} is complete there, so {other.name} would be counted once per device: AllReduce "
                    f"{one.name} over {format_axes(missing)} first"
                )
    return left


def multiply(left: TensorLayout, right: TensorLayout) -> TensorLayout:
    """The layout of the elementwise product, under the name of ``left``: linear in each, so one may be partial."""
    _same_coverage(left, right, "multiply")
    _not_both_partial(left, right)
    return left.with_partial((*left.partial, *right.partial))


def reduce_sum(layout: TensorLayout, dim: str) -> TensorLayout:
    """The layout after summing ``dim`` away: what split it now carries partial sums."""
    axes = layout.dim(dim).axes
    rest = tuple(d for d in layout.dims if d.name != dim)
    return replace(layout, dims=rest, partial=(*layout.partial, *axes))


def all_gather(layout: TensorLayout, axis: Axes, dim: str | None = None) -> TensorLayout:
    """AllGather: ``axis`` no longer splits ``dim`` (None: whichever dimensions it splits, several at once).

    In each dimension the axes gathered must be the last of its subscript.
    """
    axes = axis_names(axis)
    for name in axes:
        found = layout.dim_of(name)
        if found is None:
            raise _not_split(layout, name, "AllGather")
        if dim is not None and found.name != dim:
            layout.dim(dim)
            raise LayoutError(
                f"AllGather of {layout} over {name} along {dim}: {name} splits {found.name}: gather along {found.name}"
            )
    return replace(layout, dims=tuple(_drop_last(layout, d, axes, "AllGather") for d in layout.dims))


def reduce_scatter(layout: TensorLayout, axis: Axes, dim: str) -> TensorLayout:
    """ReduceScatter: the partial sums over ``axis`` are added and ``dim`` is split over it, innermost."""
    axes = axis_names(axis)
    layout.dim(dim)
    _check_partial(layout, axes, "ReduceScatter")
    rest = tuple(name for name in layout.partial if name not in axes)
    return layout.with_partial(rest).with_axes(dim, (*layout.dim(dim).axes, *axes))


def all_reduce(layout: TensorLayout, axis: Axes) -> TensorLayout:
    """AllReduce: the partial sums over ``axis`` are added and every device has the result."""
    axes = axis_names(axis)
    _check_partial(layout, axes, "AllReduce")
    return layout.with_partial(name for name in layout.partial if name not in axes)


def all_to_all(layout: TensorLayout, axis: Axes, from_dim: str, to_dim: str) -> TensorLayout:
    """AllToAll: ``axis``, the last of ``from_dim``'s subscript, splits ``to_dim`` instead, innermost."""
    axes = axis_names(axis)
    source, target = layout.dim(from_dim), layout.dim(to_dim)
    if from_dim == to_dim:
        raise LayoutError(
            f"AllToAll of {layout} from {from_dim} to itself: name another dimension to split over {format_axes(axes)}"
        )
    for name in axes:
        if name not in source.axes:
            found = layout.dim_of(name)
            if found is None:
                raise _not_split(layout, name, "AllToAll")
            raise LayoutError(
                f"AllToAll of {layout} over {name} from {from_dim}: {name} splits {found.name}: move it from there"
            )
    moved = source.axes[len(source.axes) - len(axes) :]
    shorter = _drop_last(layout, source, axes, "AllToAll")
    dims = {from_dim: shorter, to_dim: Dim(to_dim, (*target.axes, *moved))}
    return replace(layout, dims=tuple(dims.get(d.name, d) for d in layout.dims))


def shard(layout: TensorLayout, axis: Axes, dim: str) -> TensorLayout:
    """Keep a part: ``dim`` is split over the unused ``axis``, innermost. Every device has it: nothing moves."""
    axes = axis_names(axis)
    for name in axes:
        found = layout.dim_of(name)
        if found is not None:
            mend = f"AllToAll moves it from {found.name} to {dim}" if found.name != dim else "it is split already"
            raise LayoutError(f"cannot split {dim} of {layout} over {name}, which splits {found.name}: {mend}")
        if name in layout.partial:
            raise LayoutError(
                f"cannot split {dim} of {layout} over {name}: along it the devices hold different partial sums: "
                f"ReduceScatter {layout.name} over {name} into {dim}"
            )
    return layout.with_axes(dim, (*layout.dim(dim).axes, *axes))


@dataclass(frozen=True, slots=True)
class Contraction:
    """The dimensions of a product of two tensors by their part in it, each in the order of the operands."""

    batch: tuple[str, ...]
    left_only: tuple[str, ...]
    contracted: tuple[str, ...]
    right_only: tuple[str, ...]


def contraction(left: TensorLayout, right: TensorLayout, out_dims: Sequence[str] | None = None) -> Contraction:
    """Sort the dimensions of ``left · right``: contracted ones are in both operands and not in the output.

    Without ``out_dims`` every shared dimension is contracted. Raises `LayoutError` for an output dimension that
    neither operand has and for a dimension that is summed but that one operand lacks.
    """
    in_left, in_right = left.dim_names, right.dim_names
    shared = tuple(name for name in in_left if name in in_right)
    if out_dims is None:
        if not shared:
            raise LayoutError(
                f"{left} and {right} share no dimension to contract: give the dimension that is summed one name in both"
            )
        out_dims = tuple(name for name in (*in_left, *in_right) if name not in shared)
    for name in out_dims:
        if name not in in_left and name not in in_right:
            raise LayoutError(
                f"the output of {left} · {right} has no dimension {name}: {nearest(name, {*in_left, *in_right})}"
            )
    for one, other in ((left, right), (right, left)):
        for name in one.dim_names:
            if name not in out_dims and name not in other.dim_names:
                raise LayoutError(
                    f"{name} of {one} is not in the output, but {other} has no {name} to contract it with: keep "
                    f"{name} in the output, or give {other.name} that dimension"
                )
    return Contraction(
        batch=tuple(name for name in shared if name in out_dims),
        left_only=tuple(name for name in in_left if name not in in_right),
        contracted=tuple(name for name in shared if name not in out_dims),
        right_only=tuple(name for name in in_right if name not in in_left),
    )


def matmul(
    left: TensorLayout, right: TensorLayout, out_dims: Sequence[str] | None = None, *, name: str = "C"
) -> TensorLayout:
    """The layout of ``left · right`` multiplied locally, with nothing moved.

    A contracted dimension split alike in both operands leaves partial sums over what split it. ``out_dims`` gives
    the output's dimensions in order (default: those of ``left``, then of ``right``, without the shared ones).
    """
    parts = contraction(left, right, out_dims)
    for dim in (*parts.contracted, *parts.batch):
        _split_alike(left, right, dim, contracted=dim in parts.contracted)
    _not_both_partial(left, right)
    if out_dims is None:
        out_dims = (*parts.left_only, *parts.right_only)
    dims = tuple((left if dim in left.dim_names else right).dim(dim) for dim in out_dims)
    summed = tuple(axis for dim in parts.contracted for axis in left.dim(dim).axes)
    partial = (*left.partial, *right.partial, *summed)
    for split in dims:
        for axis in split.axes:
            clash = next((d for d in dims if d.name != split.name and axis in d.axes), None)
            if clash is not None:
                raise LayoutError(
                    f"{left} · {right}: mesh axis {axis} would split both {split.name} and {clash.name} of the "
                    f"output, so only its diagonal blocks would be made: AllGather {left.name} or {right.name} over "
                    f"{axis} first"
                )
            if axis in partial:
                raise LayoutError(
                    f"{left} · {right}: mesh axis {axis} would split {split.name} of the output and carry its "
                    f"partial sums too: {_clear_axis(left, right, axis)} over {axis} first"
                )
    for axis in partial:
        if partial.count(axis) > 1:
            raise LayoutError(
                f"{left} · {right}: mesh axis {axis} carries partial sums twice: {_clear_axis(left, right, axis)} "
                f"over {axis} first"
            )
    return TensorLayout(name, dims, partial)


def _same_coverage(left: TensorLayout, right: TensorLayout, what: str) -> None:
    if left.dim_names != right.dim_names:
        raise LayoutError(
            f"cannot {what} {left} and {right}: their dimensions differ: transpose or rename one to match the other"
        )
    for mine, theirs in zip(left.dims, right.dims, strict=True):
        if mine.axes != theirs.axes:
            raise LayoutError(
                f"cannot {what} {left} and {right}: {mine.name} is {_split(mine)} in {left.name} and "
                f"{_split(theirs)} in {right.name}, so a device holds different indices of each: "
                f"{_align(left, right, mine, theirs)}"
            )


def _split_alike(left: TensorLayout, right: TensorLayout, dim: str, *, contracted: bool) -> None:
    mine, theirs = left.dim(dim), right.dim(dim)
    if mine.axes != theirs.axes:
        kind = "contracted" if contracted else "batch"
        raise LayoutError(
            f"{left} · {right}: the {kind} dimension {dim} is {_split(mine)} in {left.name} and {_split(theirs)} in "
            f"{right.name}, so a device's indices of {dim} differ between them, even where the local shapes agree: "
            f"{_align(left, right, mine, theirs)}"
        )


def _not_both_partial(left: TensorLayout, right: TensorLayout) -> None:
    if left.partial and right.partial:
        raise LayoutError(
            f"{left} · {right}: both hold partial sums ({left.name} over {format_axes(left.partial)}, {right.name} "
            f"over {format_axes(right.partial)}), and a product of sums is not a sum of products: "
            f"{_sum_mend(left)} or {_sum_mend(right)} first"
        )


def _align(left: TensorLayout, right: TensorLayout, mine: Dim, theirs: Dim) -> str:
    """How to make one dimension's split the same in both tensors."""
    if mine.axes and theirs.axes:
        common = 0
        while mine.axes[common : common + 1] == theirs.axes[common : common + 1] != ():
            common += 1
        gathers = [
            f"{layout.name} over {format_axes(dim.axes[common:])}"
            for layout, dim in ((left, mine), (right, theirs))
            if dim.axes[common:]
        ]
        return f"AllGather {' and '.join(gathers)}"
    split, whole, dim = (left, right, mine) if mine.axes else (right, left, theirs)
    axes = format_axes(dim.axes)
    free = not set(dim.axes) & set(whole.used_axes)
    shard_instead = f", or split {dim.name} of {whole.name} over {axes} (free)" if free else ""
    return f"AllGather {split.name} over {axes}{shard_instead}"


def _clear_axis(left: TensorLayout, right: TensorLayout, axis: str) -> str:
    """The collectives that take ``axis`` off one of the operands."""
    mends = [
        f"{'AllReduce' if axis in layout.partial else 'AllGather'} {layout.name}"
        for layout in (left, right)
        if axis in layout.used_axes
    ]
    return " or ".join(dict.fromkeys(mends))


def _split(dim: Dim) -> str:
    return f"split over {format_axes(dim.axes)}" if dim.axes else "whole"


def _sum_mend(layout: TensorLayout) -> str:
    return f"AllReduce (or ReduceScatter) {layout.name} over {format_axes(layout.partial)}"


def _not_split(layout: TensorLayout, axis: str, collective: str) -> LayoutError:
    if axis in layout.partial:
        return LayoutError(
            f"{collective} of {layout} over {axis}: along {axis} it holds partial sums, not parts: AllReduce or "
            f"ReduceScatter {layout.name} over {axis} instead"
        )
    has = format_axes(layout.axes) or "nothing"
    return LayoutError(
        f"{collective} of {layout} over {axis}: {axis} splits no dimension of it (split over {has}): "
        f"the devices along {axis} hold the same already, leave the collective out or name an axis that splits it"
    )


def _check_partial(layout: TensorLayout, axes: tuple[str, ...], collective: str) -> None:
    for name in axes:
        if name in layout.partial:
            continue
        found = layout.dim_of(name)
        if found is not None:
            raise LayoutError(
                f"{collective} of {layout} over {name}: {name} splits {found.name} and carries no partial sums: "
                f"AllGather {layout.name} over {name} instead"
            )
        has = format_axes(layout.partial) or "none"
        raise LayoutError(
            f"{collective} of {layout} over {name}: it holds no partial sums over {name} (partial over: {has}), and "
            f"adding complete values would count them once per device: leave the {collective} out"
        )


def _drop_last(layout: TensorLayout, dim: Dim, axes: tuple[str, ...], collective: str) -> Dim:
    """``dim`` without ``axes``, which must be the last of its subscript."""
    keep = tuple(name for name in dim.axes if name not in axes)
    if dim.axes[: len(keep)] != keep:
        outer = min(dim.axes.index(name) for name in axes if name in dim.axes)
        inner = tuple(name for name in dim.axes[outer:] if name not in axes)
        raise LayoutError(
            f"{collective} of {layout} over {format_axes(axes)}: devices along {format_axes(inner)}, the inner of "
            f"{dim}, would be left with scattered blocks of {dim.name}: take {format_axes(inner)} off first, or "
            f"{format_axes(dim.axes[outer:])} together"
        )
    return Dim(dim.name, keep)
