"""The book's notation for sharded tensors and their products, read and printed.

``A[I_X, J_{YZ}]{U_W}``: dimension I split over mesh axis X, J over Y then Z, the values partial sums over W.
Also read: ``J_YZ`` and ``JYZ`` for several single-letter axes, ``I_{X,data}`` with word axes, unicode
subscripts (``Iₓ``, ``Iᵧ``), any spacing; in products ``·``, ``*``, ``@`` and ``->`` or ``→``. Printing
(`str`) is canonical and reads back as the same layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from simcore.errors import LayoutError
from simcore.layout.layout import DIM_PATTERN, NAME_PATTERN, Dim, TensorLayout
from simcore.layout.mesh import AXIS_PATTERN

# Unicode has no subscript capitals; the small letters stand for them, and gamma (ᵧ) for Y.
SUBSCRIPTS = dict(zip("ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵧ", "AEHIJKLMNOPRSTUVXY", strict=True))


@dataclass(frozen=True, slots=True)
class Product:
    """``left · right -> out``: dimensions in both operands but not in ``out`` are contracted."""

    left: TensorLayout
    right: TensorLayout
    out: TensorLayout

    def __post_init__(self) -> None:
        names = [self.left.name, self.right.name, self.out.name]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise LayoutError(f"{self}: {repeated} names two of the three tensors: give each its own name")

    def __str__(self) -> str:
        return f"{self.left} · {self.right} -> {self.out}"


def parse_tensor(text: str) -> TensorLayout:
    """Read one tensor. Raises `LayoutError` that shows the position and what was expected there.

    >>> str(parse_tensor("A[I_X,JYZ] {U_W}"))
    'A[I_X, J_{YZ}]{U_W}'
    """
    reader = _Reader(text)
    tensor = reader.tensor()
    reader.end()
    return tensor


def parse_product(text: str) -> Product:
    """Read a product of two tensors and its wanted output.

    >>> str(parse_product("A[I_X,J] * B[J,K_Y] → C[I,K]"))
    'A[I_X, J] · B[J, K_Y] -> C[I, K]'
    """
    reader = _Reader(text)
    left = reader.tensor()
    reader.expect(r"[·⋅*@]", "'·' and the second operand")
    right = reader.tensor()
    reader.expect(r"->|→", "'->' and the output")
    out = reader.tensor()
    reader.end()
    return Product(left, right, out)


class _Reader:
    """Reads a text from left to right, skipping spaces between tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def take(self, pattern: str, *, spaces: bool = True) -> str | None:
        """The text at this position that matches ``pattern``, consumed; None where nothing does."""
        start = self.position
        if spaces:
            while start < len(self.text) and self.text[start].isspace():
                start += 1
        match = re.compile(pattern).match(self.text, start)
        if match is None:
            return None
        self.position = match.end()
        return match[0]

    def expect(self, pattern: str, what: str) -> str:
        """As `take`, but a text that does not match is an error."""
        found = self.take(pattern)
        if found is None:
            self.fail(what)
        return found

    def fail(self, expected: str) -> NoReturn:
        """Raise the error for this position."""
        self.take(r"")  # to where the unexpected text begins
        rest = self.text[self.position :]
        got = repr(rest[0]) if rest else "the end"
        raise LayoutError(f"cannot read {self.text!r} at position {self.position + 1}: expected {expected}, got {got}")

    def end(self) -> None:
        if self.take(r"$") is None:
            self.fail("nothing more")

    def tensor(self) -> TensorLayout:
        name = self.expect(NAME_PATTERN, "a tensor's name, such as A")
        self.expect(r"\[", "'[' and the dimensions")
        dims: list[Dim] = []
        if self.take(r"\]") is None:
            dims.append(self.dim())
            while self.expect(r"[],]", "',' or ']'") == ",":
                dims.append(self.dim())
        partial: tuple[str, ...] = ()
        if self.take(r"\{"):
            self.expect("U", "U and the mesh axes of the partial sums, such as {U_X}")
            partial = self.subscript()
            if not partial:
                self.fail("the mesh axes of the partial sums, such as {U_X}")
            self.expect(r"\}", "'}'")
        return TensorLayout(name, tuple(dims), partial)

    def dim(self) -> Dim:
        name = self.expect(DIM_PATTERN, "a dimension, such as I or I_X")
        return Dim(name, self.subscript())

    def subscript(self) -> tuple[str, ...]:
        """``_X``, ``_XY``, ``_{XY}``, ``_{X,data}``, ``_data``, bare ``XY`` right after the name, or ``ₓᵧ``."""
        if self.take("_") is None:
            letters = self.take(f"[A-Z]+|[{''.join(SUBSCRIPTS)}]+", spaces=False) or ""
            return tuple(SUBSCRIPTS.get(letter, letter) for letter in letters)
        if self.take(r"\{") is None:
            axes = self.expect(rf"[A-Z]+|{AXIS_PATTERN}", "a mesh axis, such as X")
            return tuple(axes) if axes.isupper() else (axes,)
        several = [self.expect(AXIS_PATTERN, "a mesh axis, such as X")]
        while self.take(r"\}") is None:
            separated = self.take(",") is not None
            axis = self.take(AXIS_PATTERN)
            if axis is None:
                self.fail("a mesh axis, such as X" if separated else "a mesh axis, ',' or '}'")
            several.append(axis)
        return tuple(several)
