"""Colours and hatches of task kinds and waits, the same in every picture (after Okabe and Ito's palette).

Colour is never alone: kinds that may touch differ in hatch too, so that a grey print still tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """How bars of a kind are filled; ``label`` is what the legend calls them."""

    label: str
    colour: str
    hatch: str = ""


KINDS = {
    "matmul": Style("matmul", "#0072B2"),
    "vector": Style("vector", "#56B4E9", "...."),
    "hbm_load": Style("HBM load", "#E69F00"),
    "hbm_store": Style("HBM store", "#F0E442", "\\\\\\\\"),
    "ici": Style("ICI transfer", "#009E73"),
    "nvlink": Style("NVLink transfer", "#009E73"),
    "network": Style("network transfer", "#CC79A7"),
    "pcie": Style("PCIe transfer", "#CC79A7"),
    "dcn": Style("DCN transfer", "#CC79A7", "xxxx"),
}
OTHER = Style("other", "#BBBBBB")
EXPOSED = Style("waiting: communication", "#D55E00", "////")
WAITING = Style("waiting: other", "#999999", "\\\\\\\\")
SLOT = Style("buffer held", "#F5D9A0")
BANDS = ("#F2F2F2", "#E0E0E0")


def style_of(kind: str) -> Style:
    """The style of a task kind; `OTHER` for kinds of a user's own."""
    return KINDS.get(kind, OTHER)
