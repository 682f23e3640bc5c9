"""The chip catalogue: the book's figures, a source for each, and chip files of one's own."""

import pytest

from simcore.chips import all_chips, chip_names, chip_table, load_chip
from simcore.chips.figures import FIGURES
from simcore.errors import ChipError

BOOK = {  # HBM bytes, HBM bytes/s, bf16 FLOPs/s, int8 OPs/s, one-way link bytes/s
    "v3": (32e9, 9.0e11, 1.4e14, 1.4e14, 1e11),
    "v4p": (32e9, 1.2e12, 2.75e14, 2.75e14, 4.5e10),
    "v5p": (96e9, 2.8e12, 4.59e14, 9.18e14, 9e10),
    "v5e": (16e9, 8.1e11, 1.97e14, 3.94e14, 4.5e10),
    "v6e": (32e9, 1.6e12, 9.20e14, 1.84e15, 9e10),
}


@pytest.mark.parametrize("name", BOOK)
def test_tpu_figures_are_those_of_the_book(name):
    chip = load_chip(name)
    figures = (
        chip.hbm_capacity_bytes,
        chip.hbm_bandwidth_bytes_per_s,
        chip.peak("bf16"),
        chip.peak("int8"),
        chip.ici_link_bandwidth_bytes_per_s,
    )
    assert figures == BOOK[name]


def test_the_catalogue_has_tpus_and_gpus():
    assert {"v3", "v4p", "v5p", "v5e", "v6e", "v7", "A100", "H100", "H200", "B200"} == set(chip_names())
    columns, rows = chip_table()
    assert all(len(row) == len(columns) for row in rows)


def test_every_figure_has_a_source():
    for chip in all_chips():
        for figure in FIGURES:
            if getattr(chip, figure) not in (None, 0.0):
                assert chip.sources[figure], (chip.name, figure)
        for table in ("peak_flops_per_s", "efficiency"):
            for entry in getattr(chip, table):
                assert chip.sources[f"{table}.{entry}"]


def test_arrays_and_clock_make_the_peak():
    for chip in all_chips():
        if chip.family == "tpu":
            assert chip.mxu_count * chip.mxu_side**2 * 2 * chip.clock_hz == pytest.approx(chip.peak("bf16"), rel=0.01)


def test_a_name_may_be_an_alias_in_any_case():
    assert load_chip("V4").name == "v4p"
    assert load_chip("tpu7x").name == "v7"
    assert load_chip("a100-80gb").name == "A100"


def test_ridge_is_peak_over_bandwidth():
    assert load_chip("v5e").ridge_flops_per_byte() == pytest.approx(1.97e14 / 8.1e11)


def test_unknown_chip_names_the_nearest():
    with pytest.raises(ChipError, match=r"did you mean.*v5e"):
        load_chip("v5")


def test_a_chip_derived_from_another(tmp_path):
    file = tmp_path / "fat.toml"
    file.write_text('base = "v5e"\nhbm_bandwidth_bytes_per_s = "2x"\nvmem_capacity_bytes = "64 MiB"\n')
    chip = load_chip(file)
    assert chip.name == "fat"
    assert chip.hbm_bandwidth_bytes_per_s == 2 * 8.1e11
    assert chip.vmem_capacity_bytes == 2**26
    assert chip.peak("bf16") == 1.97e14
    assert "fat.toml" in chip.sources["hbm_bandwidth_bytes_per_s"]


def test_a_chip_of_ones_own(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        """
        hbm_capacity_bytes = "1 GB"
        hbm_bandwidth_bytes_per_s = { value = "1 GB/s", source = "made up" }
        vmem_capacity_bytes = 1000
        vmem_bandwidth_bytes_per_s = 1e10
        vpu_flops_per_s = 1e9
        mxu_side = 8
        mxu_sublanes = 8
        clock_hz = 1e9
        [peak_flops_per_s]
        bf16 = "6 GFLOP/s"
        """
    )
    chip = load_chip(str(file))
    assert chip.peak("bf16") == 6e9
    assert chip.sources["hbm_bandwidth_bytes_per_s"] == "made up"
    with pytest.raises(ChipError, match="has no ici_hop_latency_s"):
        chip.require("ici_hop_latency_s")
    with pytest.raises(ChipError, match="no int8 matmul rate"):
        chip.peak("int8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "v5e"\nhbm_bandwith_bytes_per_s = 1', "did you mean hbm_bandwidth_bytes_per_s"),
        ('base = "v5e"\nhbm_bandwidth_bytes_per_s = 0', "must be positive"),
        ('base = "v5e"\nhbm_bandwidth_bytes_per_s = -1e9', "must be positive"),
        ('base = "v5e"\nhbm_bandwidth_bytes_per_s = "fast"', "no bandwidth"),
        ('base = "v5e"\nhbm_bandwidth_bytes_per_s = nan', "no bandwidth"),
        ('base = "v5e"\n[efficiency]\nhbm = 1.5', "at most 1"),
        ('base = "v5e"\n[efficiency]\nhmb = 0.5', "did you mean hbm"),
        ('base = "v9"', "unknown chip"),
        ("hbm_capacity_bytes = 1", "missing hbm_bandwidth_bytes_per_s"),
        ("hbm_capacity_bytes = '2x'", "is a factor"),
        ("this is not toml", "is no TOML"),
    ],
)
def test_a_faulty_chip_file_is_one_line_that_names_the_key(tmp_path, text, message):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ChipError, match=message) as caught:
        load_chip(file)
    assert "\n" not in str(caught.value)
    assert "bad.toml" in str(caught.value)


def test_missing_file_folder_and_self_reference(tmp_path):
    with pytest.raises(ChipError, match="no such file"):
        load_chip(tmp_path / "none.toml")
    with pytest.raises(ChipError, match="folder"):
        load_chip(tmp_path)
    (tmp_path / "a.toml").write_text('base = "a.toml"')
    with pytest.raises(ChipError, match="derived from itself"):
        load_chip(tmp_path / "a.toml")


def test_what_if_figures_take_short_names_and_factors():
    chip = load_chip("v5e").replace(hbm_bandwidth="2x", ici_latency="0.5us", flops="0.5x", **{"efficiency.hbm": 1})
    assert chip.hbm_bandwidth_bytes_per_s == 1.62e12
    assert chip.ici_hop_latency_s == 5e-7
    assert chip.peak("bf16") == 1.97e14 / 2
    assert chip.efficiency["hbm"] == 1
    with pytest.raises(ChipError, match="did you mean hbm_bandwidth"):
        load_chip("v5e").replace(hbm_bandwith="2x")
    with pytest.raises(ChipError, match="positive"):
        load_chip("v5e").replace(hbm_bandwidth="0x")
