"""Chips: the catalogue, chip files of a user's own, and the figures that a chip has."""

from simcore.chips.catalogue import all_chips, chip_names, chip_table, load_chip
from simcore.chips.chip import Chip

__all__ = ["Chip", "all_chips", "chip_names", "chip_table", "load_chip"]
