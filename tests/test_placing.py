"""Plans on real slices: which links each kind of parallelism gets, and what cannot be laid."""

import pytest

from simcore.chips import load_chip
from simcore.errors import SimcoreError
from simcore.lowering import LoweringOptions, lower
from simcore.running import run
from workloads.catalogue import load_model
from workloads.placing import place
from workloads.plan import Plan
from workloads.transformer import model_step


def placed(plan, chip, *where, **more):
    return place(Plan.parse(plan), load_chip(chip), *where, **more)


def test_a_slice_of_8_by_16_on_v5e_has_rings_on_the_16_axis_only():
    found = placed("data=8,tensor=16", "v5e", "8x16")
    assert found.sizes == {"data": 8, "tensor": 16}
    assert found.lines == {"data"}
    other = placed("data=16,tensor=8", "v5e", "8x16")
    assert other.lines == {"tensor"}


def test_cubes_of_v5p_wrap_on_all_axes_and_smaller_slices_on_none():
    assert placed("fsdp=16,tensor=4", "v5p", "4x4x4").lines == set()
    assert placed("tensor=4", "v5p", "2x2x1").lines == {"tensor_x", "tensor_y"}


def test_a_kind_on_several_physical_axes_has_as_many_mesh_axes():
    found = placed("tensor=16", "v5e", "4x4")
    assert found.axes == {"tensor": ("tensor_x", "tensor_y")}
    assert found.of("data", "tensor") == ("tensor_x", "tensor_y")


def test_a_mapping_chooses_the_axes():
    found = placed("fsdp=16,tensor=4", "v5p", "4x4x4", mapping="fsdp=xz,tensor=y")
    assert found.axes["fsdp"] == ("fsdp_x", "fsdp_z")


def test_slices_are_joined_by_the_hosts_network_which_chips_share():
    found = placed("data=8,tensor=4", "v5e", "4x4", slices=2)
    assert found.axes["data"] == ("data_slices", "data")
    assert found.networks == {"data_slices": "dcn_share"}
    assert placed("data=2,tensor=16", "v5e", "4x4", slices=2).axes["data"] == ("data_slices",)


def test_gpus_fill_their_nvlink_domain_from_the_innermost_kind_outwards():
    assert placed("data=2,tensor=8", "h100", "16").networks == {"data": "network", "tensor": "nvlink"}
    split = placed("tensor=16", "h100", "16")
    assert split.axes["tensor"] == ("tensor_network", "tensor_nvlink")
    both = placed("fsdp=16,tensor=2", "h100")
    assert (both.sizes["tensor"], both.sizes["fsdp_nvlink"], both.sizes["fsdp_network"]) == (2, 4, 4)


@pytest.mark.parametrize(
    ("plan", "chip", "where", "message"),
    [
        ("tensor=8", "v5e", "4x4", "plan tensor=8 uses 8 chips, a slice of 4x4 has 16"),
        ("data=2,tensor=8", "v5e", "4x4", "does not lie on whole axes"),
        ("tensor=16", "v5e", "4x4x1", "a slice of v5e has 2 axes, 4x4x1 has 3"),
        ("tensor=6", "h100", "", "does not fill what is left of an NVLink domain, 8 of 8 GPUs"),
        ("tensor=8", "h100", "many", "a number of GPUs is meant"),
    ],
)
def test_what_cannot_be_laid_says_why(plan, chip, where, message):
    with pytest.raises(SimcoreError) as error:
        placed(plan, chip, where)
    assert message in str(error.value)


def step(plan, chip, where, **more):
    found = placed(plan, chip, where, **more)
    ops = model_step(load_model("tiny"), "decode", batch=32, context=32, plan=found)
    options = LoweringOptions(lines=found.lines, networks=found.networks)
    return run(lower(ops, load_chip(chip), options), chip=chip, ideal=True)


def test_a_line_takes_longer_than_a_ring_and_the_slow_network_carries_the_least():
    ring = step("tensor=4", "v5p", "")
    line = step("tensor=4", "v5p", "4x1x1")
    assert line.time_s > ring.time_s
    result = step("fsdp=16", "h100", "16")
    assert result.bytes["network"] < result.bytes["nvlink"]
    assert step("fsdp=32", "v5e", "4x4", slices=2).bytes["dcn_share"] > 0
