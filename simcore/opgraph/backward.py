"""The backward pass of an op graph, derived: a rule for each operation, none for a block.

Every operation is read as what it says of the whole, logical arrays; its derivative is again operations on sharded
arrays, and the collectives follow from their layouts. What goes back to an operand that all chips had gives partial
sums, which are added up where a complete array is needed: so the transpose of an AllGather is a ReduceScatter, that of
a ReduceScatter an AllGather, and an AllReduce's is nothing, while what was the same on all chips gets an AllReduce.

A repeat's derivative is a repeat that goes from the last iteration to the first. What its rules read of the forward
pass is either kept (one array for each iteration) or computed once more; which of the two is the policy
(`Backward.kept`).

Source of recomputing: Chen et al. 2016; of the rules of matmuls: How To Scale Your Model, "Training".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from simcore.errors import GraphError
from simcore.opgraph.backward_operations import Keep
from simcore.opgraph.backward_steps import attention_gradient, outer_product, row_sum, scatter_add
from simcore.opgraph.derivative import SAME, Gradient, same
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.operations import Append, Attention, Collective, Einsum, Elementwise, Lookup, Operation, written
from simcore.opgraph.reshard import reshard
from simcore.opgraph.tensor import ShardedTensor

STATS = "St"
"""A dimension of size 2: what the derivative of attention has of each query and head."""
BACKWARD, RECOMPUTE = "backward", "recompute"
"""What operations of the backward pass are part of; see `OpGraph.in_phase`."""
GIVEN = ("weight", "state", "input")
"""Tensors that are there for the whole run: neither kept nor computed once more."""


@dataclass
class Backward:
    """Puts the backward pass of ``g`` at its end.

    Parameters
    ----------
    kept : whether the forward pass's result of an operation is kept for the backward pass; what a repeat carries is
        kept wherever the graph has a `Keep` of it.
    gradient_dtype : format of weights' gradients, in which they are added up over chips.
    label : goes before the names of what is made.
    """

    g: OpGraph
    kept: Callable[[ShardedTensor, Operation], bool]
    gradient_dtype: str = "bf16"
    label: str = "d"
    gradients: dict[str, ShardedTensor] = field(default_factory=dict)
    """weight -> its gradient, laid out as the weight; those of another microbatch are added to"""
    piece: str = ""
    """ends the names of what is made: the microbatch, where there are several"""
    later: frozenset[str] = frozenset()
    """mesh axes over which gradients are added up once, by `add_up`, and not for each microbatch"""
    _back: dict[str, list[ShardedTensor]] = field(default_factory=dict)
    """tensor of the forward pass -> what goes back to it, to be added up"""
    _carried: set[str] = field(default_factory=set)
    """names of what goes back through repeats, which is written over in place"""
    _own: set[str] = field(default_factory=set)
    """names of what was made for one use and may be written over"""
    _again: dict[tuple[str, int], ShardedTensor] = field(default_factory=dict)
    _laid: dict[tuple[str, object], ShardedTensor] = field(default_factory=dict)
    _operations: list[Operation] = field(default_factory=list)
    _first_use: dict[str, int] = field(default_factory=dict)

    def run(
        self, start: ShardedTensor, back: ShardedTensor, carried: str, nodes: Sequence[Operation | Repeat] | None = None
    ) -> dict[str, ShardedTensor]:
        """Derive everything up to ``start``, to which ``back`` goes back; returns the weights' gradients.

        ``carried`` is the tensor that the repeats carry. ``nodes`` are the forward pass, if not all of the graph up to
        what makes ``start``. Raises `GraphError` for an operation without a rule.
        """
        if nodes is None:
            ends = [
                at for at, node in enumerate(self.g.body) if not isinstance(node, Repeat) and start.name in _names(node)
            ]
            if not ends:
                raise GraphError(f"nothing makes {start}, from which the backward pass would start")
            nodes = self.g.body[: ends[0] + 1]
        self._back[start.name] = [back]
        with self.g.in_phase(BACKWARD):
            self._derive(list(nodes), carried)
        return self.gradients

    def _derive(self, nodes: list[Operation | Repeat], carried: str) -> None:
        groups = _groups(nodes)
        outside = [node for group in groups if not isinstance(group, Repeat) for node in group]
        uses: dict[str, int] = {}
        for number, node in enumerate(outside):
            for tensor in node.reads:
                uses.setdefault(tensor.name, number)
        for group in reversed(groups):
            if isinstance(group, Repeat):
                self._through(group, carried)
            else:
                offset = outside.index(group[0])
                self._walk(group, {name: at - offset for name, at in uses.items()})
        for name in [name for name in self._back if self.g.tensors[name].role == "weight"]:
            self._finish(name)

    def add_up(self) -> dict[str, ShardedTensor]:
        """Add the gradients up over the axes for which that was ``later``; returns them."""
        stacks: dict[str, list[str]] = {}
        for name, gradient in self.gradients.items():
            if gradient.layout.partial:
                stacks.setdefault(self.g.tensors[name].repeat, []).append(name)
        like = {node.stack: node for node in reversed(self.g.body) if isinstance(node, Repeat)}
        for stack, names in stacks.items():
            repeat = like.get(stack)
            around = nullcontext() if repeat is None else self.g.repeat(
                f"{stack} sums", repeat.count, first_layer=repeat.first_layer, layers=repeat.layers, stack=stack,
                backwards=True,
            )  # fmt: skip
            with around, self.g.in_phase(BACKWARD):
                for name in names:
                    gradient = self.gradients[name]
                    self.gradients[name] = reshard(self.g, gradient, self._complete_layout(gradient))
        return self.gradients

    def to(self, tensor: ShardedTensor) -> ShardedTensor:
        """What goes back to a given tensor, laid out as it is; once the rest has been derived, and once only."""
        if tensor.name not in self._back:
            raise GraphError(f"nothing goes back to {tensor}")
        return self._sum(tensor.name, self._complete_layout(tensor))

    def _through(self, repeat: Repeat, carried: str) -> None:
        """The repeat's body backwards, from its last iteration to the first."""
        g = self.g
        carry = self._sum(carried, self._complete_layout(g.tensors[carried]))
        self._carried.add(carry.name)
        self._back[carried] = [carry]
        with g.repeat(
            f"{repeat.name} {self.label}",
            repeat.count,
            first_layer=repeat.first_layer,
            layers=repeat.layers,
            stack=repeat.stack,
            backwards=True,
        ):
            first: dict[str, int] = {}
            for at, operation in enumerate(repeat.body):
                for tensor in operation.reads:
                    first.setdefault(tensor.name, at)
            self._walk(repeat.body, first, layers=g.layer_in_body)
            end = self._sum(carried, self._complete_layout(g.tensors[carried]))
            if end.name != carry.name:
                raise GraphError(f"{repeat.name}: what goes back to {carried} ends in {end}, not where it began")
        self._back[carried] = [carry]

    def _walk(
        self, operations: Sequence[Operation], first_use: dict[str, int], layers: dict[str, int] | None = None
    ) -> None:
        self._operations, self._again, self._laid = list(operations), {}, {}
        for at in reversed(range(len(operations))):
            operation = operations[at]
            if layers is not None:
                self.g._layer = layers[operation.name]
            if any(tensor.name in self._back for tensor in written(operation)) or isinstance(operation, Keep):
                self._rule(operation, at)
            for tensor in operation.reads:
                if tensor.role == "weight" and first_use[tensor.name] == at and tensor.name in self._back:
                    self._finish(tensor.name)

    # -- what goes back ---------------------------------------------------------------------------------------

    def _complete_layout(self, tensor: ShardedTensor) -> Any:
        return tensor.layout.with_partial(())

    def _sum(self, name: str, layout: Any = None) -> ShardedTensor:
        """All that goes back to a tensor, added up; laid out in ``layout`` if one is given."""
        parts = self._back.pop(name)
        by_layout: dict[object, ShardedTensor] = {}
        for part in parts:
            key = replace(part.layout, name="any")
            by_layout[key] = self._added(by_layout[key], part) if key in by_layout else part
        alike = list(by_layout.values())
        if len(alike) > 1:
            goal = layout if layout is not None else self._complete_layout(self.g.tensors[name])
            total = self._laid_out(alike[0], goal)
            for part in alike[1:]:
                total = self._added(total, self._laid_out(part, goal))
            return total
        return self._laid_out(alike[0], layout) if layout is not None else alike[0]

    def _added(self, one: ShardedTensor, other: ShardedTensor) -> ShardedTensor:
        into = next((part for part in (one, other) if part.name in self._carried), None)
        into = into or next((part for part in (one, other) if part.name in self._own), None)
        name = self._named(f"{one.name}_sum")
        if into is None:
            out = self.g.add(name, one, other)
            self._own.add(out.name)
            return out
        self._laid = {key: laid for key, laid in self._laid.items() if key[0] != into.name}  # of what it was
        return self.g.add(name, into, other if into is one else one, into=into)

    def _laid_out(self, tensor: ShardedTensor, layout: Any) -> ShardedTensor:
        goal = replace(layout, name=tensor.name)
        if tensor.layout == goal:
            return tensor
        key = (tensor.name, goal)
        if key not in self._laid:
            made = reshard(self.g, tensor, goal)
            if made.name == tensor.name:  # in place: there is nothing to remember
                return made
            self._laid[key] = made
        return self._laid[key]

    def _give(self, tensor: ShardedTensor, back: ShardedTensor, *, own: bool = True) -> None:
        self._back.setdefault(tensor.name, []).append(back)
        if own:
            self._own.add(back.name)
        else:
            self._own.discard(back.name)

    def _finish(self, weight: str) -> None:
        """Add up a weight's gradient over chips, where the weight has it."""
        tensor, parts = self.g.tensors[weight], self._back[weight]
        later = [axis for part in parts for axis in part.layout.partial if axis in self.later]
        layout = self._complete_layout(tensor).with_partial(dict.fromkeys(later))
        made, known = self._sum(weight, layout), self.gradients.get(weight)
        if known is None:
            self.gradients[weight] = made
        else:
            self.g.add(self._named(f"{self.label}_{weight}_sum"), known, made, into=known)

    def _named(self, base: str) -> str:
        end = f"_{self.piece}" if self.piece else ""
        base = base.replace(end, "") if end else base
        name, number = f"{base}{end}", 1
        while name in self.g.tensors or name in self.g._names:
            number += 1
            name = f"{base}{number}{end}"
        return name

    # -- what the rules read of the forward pass --------------------------------------------------------------

    def _need(self, tensor: ShardedTensor, at: int) -> ShardedTensor:
        """A tensor as the operation at a position read it: kept, or computed once more."""
        if tensor.role in GIVEN:
            return tensor
        for before in reversed(range(at)):
            operation = self._operations[before]
            if isinstance(operation, Keep) and operation.source.name == tensor.name:
                return operation.out
            if tensor.name in _names(operation):
                kept = self.g.tensors[tensor.name]
                if tensor.role != "gathered" and self.kept(tensor, operation) and tensor.layout == kept.layout:
                    return kept
                return self._once_more(tensor, before)
        return tensor  # made outside of the repeat, or carried

    def _once_more(self, tensor: ShardedTensor, at: int) -> ShardedTensor:
        key = (tensor.name, at)
        if key not in self._again:
            operation = self._operations[at]
            known = {read.name: self._need(read, at) for read in operation.reads}
            made = {}
            for out in written(operation):
                if out.name in known and isinstance(operation, Collective):
                    made[out.name] = replace(out, layout=replace(out.layout, name=known[out.name].name))
                    self.g.tensors[known[out.name].name] = made[out.name]
                else:
                    name = self._named(f"{out.name}_again")
                    made[out.name] = self.g._keep(replace(out, layout=replace(out.layout, name=name)))
            first = made[written(operation)[0].name].name
            name = first if operation.name in made and first not in self.g._names else f"{operation.name}_again"
            again = _with_tensors(operation, {**known, **made}, name if name == first else self._named(name), made)
            with self.g.in_phase(RECOMPUTE):
                self.g._append(again)
            for name, out in made.items():
                self._again[name, at] = out
        return self._again[key]

    # -- rules ------------------------------------------------------------------------------------------------

    def _rule(self, operation: Operation, at: int) -> None:
        match operation:
            case Einsum():
                self._einsum(operation, at)
            case Elementwise():
                self._elementwise(operation, at)
            case Attention():
                self._attention(operation, at)
            case Lookup():
                self._lookup(operation, at)
            case Collective() if operation.kind != "Permute":
                if operation.source.name != operation.out.name:  # else it is in place, and so is what goes back
                    self._give(operation.source, self._sum(operation.out.name), own=False)
            case Keep() | Append():
                pass
            case _:
                raise GraphError(f"{operation.name}: there is no rule for the derivative of {type(operation).__name__}")

    def _einsum(self, operation: Einsum, at: int) -> None:
        left, right, out = operation.left, operation.right, operation.out
        back = self._sum(out.name, self._complete_layout(out))
        if operation.bias is not None:
            name = self._named(f"{self.label}_{operation.bias.name}")
            made = row_sum(self.g, name, [back], same, operation.bias, dtype=self.gradient_dtype)
            self._give(operation.bias, made)
        matrix = self._need(right, at)
        name = self._named(f"{self.label}_{left.name}_{operation.name}")
        self._give(left, self.g.einsum(name, back, matrix, left.dim_names))
        rows, order = len(operation.parts.contracted), (self._need(left, at), back)
        if operation.right_is_transposed:
            rows, order = len(operation.parts.right_only), order[::-1]
        name = self._named(f"{self.label}_{right.name}")
        self._give(right, outer_product(self.g, name, *order, rows=rows, dtype=self.gradient_dtype))

    def _elementwise(self, operation: Elementwise, at: int) -> None:
        arguments = operation.reads
        if len(operation.gradients) != len(arguments):
            raise GraphError(f"{operation.name}: the derivative of its function is not known")
        back = self._sum(operation.out.name, self._complete_layout(operation.out))
        for number, (argument, gradient) in enumerate(zip(arguments, operation.gradients, strict=True)):
            if gradient is None:
                continue
            vector = number >= len(operation.inputs)
            if gradient == SAME and not vector:
                self._give(argument, back, own=False)
                continue
            inputs = [arguments[use] for use in gradient.uses if use < len(operation.inputs)]
            vectors = [arguments[use] for use in gradient.uses if use >= len(operation.inputs)]
            needed = [self._need(tensor, at) for tensor in inputs]
            function = _reordered(gradient, len(inputs))
            name = self._named(f"{self.label}_{argument.name}_{operation.name}")
            if vector:
                made = row_sum(
                    self.g, name, [back, *needed], function, argument, vectors=vectors,
                    operations_per_element=gradient.operations + 1, dtype=self.gradient_dtype,
                )  # fmt: skip
            else:
                features = argument.layout.dims[argument.rows :]
                alike = features == operation.out.layout.dims[operation.out.rows :]
                made = self.g.elementwise(
                    name, [back, *needed], function, operations_per_element=gradient.operations, vectors=vectors,
                    features="" if alike else ", ".join(map(str, features)),
                )  # fmt: skip
            self._give(argument, made)

    def _attention(self, operation: Attention, at: int) -> None:
        if operation.log is None or operation.sums or any(operation.cached) or operation.stripes:
            raise GraphError(f"{operation.name}: attention's derivative needs its sums (log), and no cache or stripes")
        back = self._sum(operation.out.name, self._complete_layout(operation.out))
        q, k, v = (self._need(tensor, at) for tensor in (operation.q, operation.k, operation.v))
        given, log = (self._need(tensor, at + 1) for tensor in (operation.out, operation.log))
        name = self._named(f"{self.label}_{operation.name}")
        heads, width = operation.q.layout.dims[-2], given_width(self.g, given)
        stats = self.g.elementwise(
            self._named(f"{name}_stats"), [back, given, log], _with_logarithms, operations_per_element=width,
            features=f"{heads}, {STATS}", dtype="fp32",
        )  # fmt: skip
        made = attention_gradient(self.g, name, operation, q=q, k=k, v=v, stats=stats, back=back)
        for tensor, what in zip((operation.q, operation.k, operation.v), made, strict=True):
            self._give(tensor, what)

    def _lookup(self, operation: Lookup, at: int) -> None:
        back = self._sum(operation.out.name, self._complete_layout(operation.out))
        name = self._named(f"{self.label}_{operation.table.name}")
        table, dtype = operation.table, self.gradient_dtype
        self._give(table, scatter_add(self.g, name, back, operation.tokens, table, dtype=dtype))


def given_width(g: OpGraph, given: ShardedTensor) -> int:
    """Values of a head that attention gives."""
    return g.sizes[given.dim_names[-1]]


def _with_logarithms(back: Any, given: Any, log: Any) -> Any:
    """Of each head the logarithm of its sum of weights, and how much of ``back`` lies along what it gave."""
    heads = log.shape[-1]
    along = (back * given).reshape(len(back), heads, -1).sum(axis=-1)
    return np.stack([log, along], axis=-1).reshape(len(back), -1)


def _names(operation: Operation) -> list[str]:
    return [tensor.name for tensor in written(operation)]


def _groups(nodes: Sequence[Operation | Repeat]) -> list[Repeat | list[Operation]]:
    """Repeats, and the operations between them."""
    groups: list[Repeat | list[Operation]] = []
    for node in nodes:
        if isinstance(node, Repeat):
            groups.append(node)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _reordered(gradient: Gradient, inputs: int) -> Callable[..., Any]:
    """The derivative as a function of what comes back, then inputs and vectors."""
    return lambda back, *rest: gradient.function(*rest, back)


def _with_tensors(
    operation: Operation, tensors: dict[str, ShardedTensor], name: str, made: dict[str, ShardedTensor]
) -> Operation:
    """The operation on other tensors."""

    def other(value: Any) -> Any:
        if isinstance(value, ShardedTensor):
            return tensors.get(value.name, value)
        if isinstance(value, tuple) and value and isinstance(value[0], ShardedTensor):
            return tuple(map(other, value))
        return value

    changes = {item.name: other(getattr(operation, item.name)) for item in fields(operation)}
    if isinstance(operation, Collective) and operation.source.name == operation.out.name:
        changes["source"] = replace(tensors[operation.source.name], layout=replace(
            operation.source.layout, name=made[operation.out.name].name))  # fmt: skip
    return replace(operation, **{**changes, "name": name})


__all__ = ["Backward"]
