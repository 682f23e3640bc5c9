"""`simcore matmul`: plans and their simulated times, the axes that wrap, and what it says to wrong input."""

import json

import pytest

from simcore.commands.matmul import main
from simcore.errors import SimcoreError

PRODUCT = "A[I_X, J] · B[J, K_Y] -> C[I, K]"
SIZE = "I=1024,J=1024,K=1024"


def text_of(capsys, product=PRODUCT, size=SIZE, mesh="X=4,Y=2", *flags):
    assert main([product, "--size", size, "--mesh", mesh, *flags], "simcore matmul") == 0
    return capsys.readouterr().out


def json_of(capsys, *arguments):
    return json.loads(text_of(capsys, *arguments, "--json"))


def test_the_report_has_the_plan_its_bounds_its_times_and_the_alternatives(capsys):
    text = text_of(capsys)
    for part in (
        "A[I_X, J] · B[J, K_Y] -> C[I, K] on 8 chips v5e (calibrated model)",
        "I = 1024, J = 1024, K = 1024, bf16",
        "slice 4x2 (assumed; --slice says another): X on x (a line of 4), Y on y (a line of 2)",
        "plan 1 of 8: ",
        "1. matmul A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]: [256 x 1024] · [1024 x 512]",
        "closed form  ",
        "simulated  ",
        "bound by ICI",
        "bounds  ",
        "exposed communication  ",
        "AllGather_Y B, matmul, AllGather_X C",
    ):
        assert part in text


def test_the_json_has_the_figures_of_a_run_and_those_of_every_plan(capsys):
    found = json_of(capsys, PRODUCT, SIZE, "X=4,Y=2", "--ideal")
    assert found["scenario"] == "matmul"
    assert found["parameters"]["mesh"] == "X=4,Y=2"
    assert found["flops"] == 2 * 1024**3
    assert found["time_s"] == found["plans"][0]["simulated_s"] >= found["bound_s"] > 0
    assert found["closed_form_s"] == found["plans"][0]["closed_form_s"]
    assert sum(step["closed_form_s"] for step in found["steps"]) == pytest.approx(found["closed_form_s"])
    closed = [plan["closed_form_s"] for plan in found["plans"]]
    assert closed == sorted(closed)
    assert len(closed) == 8


def test_another_plan_can_be_shown(capsys):
    first, third = (json_of(capsys, PRODUCT, SIZE, "X=4,Y=2", "--plan", number) for number in "13")
    assert third["time_s"] == first["plans"][2]["simulated_s"]
    assert third["steps"] != first["steps"]


def test_more_plans_are_listed_when_asked_for(capsys):
    assert len(json_of(capsys, PRODUCT, SIZE, "X=4,Y=2", "--limit", "2")["plans"]) == 2
    assert len(json_of(capsys, PRODUCT, SIZE, "X=4,Y=2", "--limit", "2", "--plan", "5")["plans"]) == 5


def test_one_gather_takes_its_closed_form_and_the_matmul_its_own(capsys):
    """AllGather_X of a [8192, 8192] in bf16 on a ring of 16: 15/16 V/W + 8 hops, after which all is MXU-bound."""
    product, size = "A[I, J_X] · B[J, K] -> C[I, K]", "I=8192,J=8192,K=8192"
    plans = json_of(capsys, product, size, "X=16", "--ideal", "--limit", "40")["plans"]
    found = next(plan for plan in plans if plan["steps"] == "AllGather_X A, matmul")
    gather = 15 / 16 * 2 * 8192**2 / 90e9 + 8e-6
    compute = 2 * 8192**3 / 197e12
    assert found["closed_form_s"] == pytest.approx(gather + compute, rel=1e-12)
    assert gather + compute < found["simulated_s"] < 1.01 * (gather + compute)


def test_an_axis_of_16_is_a_ring_on_v5e_and_one_of_8_a_line(capsys):
    product, size = "A[I, J_X] · B[J_X, K] -> C[I, K]", "I=8192,J=8192,K=8192"
    assert "X on x (a ring of 16)" in text_of(capsys, product, size, "X=16")
    line = json_of(capsys, product, size, "X=8", "--ideal", "--limit", "40")
    assert line["lines"] == ["X"]
    gather = next(plan for plan in line["plans"] if plan["steps"] == "AllGather_X A, AllGather_X B, matmul")
    one = 7 / 8 * 2 * 8192**2 / 45e9 + 7e-6
    assert gather["closed_form_s"] == pytest.approx(2 * one + 2 * 8192**3 / 197e12, rel=1e-12)


def test_full_cubes_of_v5p_wrap_on_every_axis(capsys):
    found = json_of(capsys, "A[I_X, J_Y] · B[J_Z, K] -> C[I, K]", SIZE, "X=4,Y=4,Z=4", "--chip", "v5p")
    assert found["lines"] == []
    assert found["parameters"]["slice"] == "4x4x4"


def test_a_mesh_axis_may_lie_on_two_axes_of_the_slice(capsys):
    text = text_of(capsys, "A[I, J_X] · B[J_X, K] -> C[I, K]", SIZE, "X=16", "--slice", "4x4")
    assert "A[I, J_{x,y}] · B[J_{x,y}, K] -> C[I, K]" in text
    assert "X on x (a line of 4) and y (a line of 4)" in text


def test_where_an_axis_lies_decides_and_not_its_name(capsys):
    """X=16 on the axis that wraps and on the one of 16 that lies across; renaming changes nothing."""
    product, size = "A[I, J_X] · B[J_X, K_Y] -> C[I, K_Y]", "I=4096,J=4096,K=4096"
    straight = json_of(capsys, product, size, "X=8,Y=16")
    turned = json_of(capsys, product, size, "X=8,Y=16", "--map", "X=y,Y=x")
    renamed = json_of(capsys, product.replace("Y", "W").replace("X", "V"), size, "V=8,W=16")
    assert straight["lines"] == turned["lines"] == ["X"]
    assert turned["parameters"]["slice"] == "16x8"
    assert straight["time_s"] == turned["time_s"] == renamed["time_s"]
    assert renamed["lines"] == ["V"]


def test_axes_of_one_device_take_no_part(capsys):
    text = text_of(capsys, PRODUCT, SIZE, "X=1,Y=1")
    assert "X, Y have one device and split nothing" in text
    assert "plan 1 of 1: matmul\n" in text
    assert "exposed communication  0 s" in text
    assert "ICI" not in text


def test_gpus_of_a_domain_are_on_a_switch(capsys):
    found = json_of(capsys, "A[I, J_X] · B[J_X, K] -> C[I, K]", SIZE, "X=8", "--chip", "h100", "--ideal")
    assert found["bytes"]["nvlink"] == 2 * 7 * 2 * 1024**2
    reduced = next(plan for plan in found["plans"] if plan["steps"] == "matmul, AllReduce_X C")
    closed = 2 * (7 / 8 * 2 * 1024**2 / 450e9 + 1e-6) + 2 * 1024**3 / 8 / 989e12
    assert reduced["closed_form_s"] == pytest.approx(closed, rel=1e-9)


def test_a_slice_that_is_not_sold_is_simulated_with_a_warning(capsys):
    assert "v5e is not offered as 3x1" in text_of(capsys, "A[I_X, J] · B[J, K] -> C[I, K]", "I=9,J=8,K=8", "X=3")


def test_padding_rounds_up_what_does_not_divide(capsys):
    assert "I = 1024, J = 10, K = 1000" in text_of(capsys, PRODUCT, "I=1021,J=10,K=999", "X=4,Y=2", "--pad")


def test_stars_and_unicode_subscripts_are_read(capsys):
    found = [
        json_of(capsys, product, SIZE, "X=4,Y=2")["time_s"]
        for product in (PRODUCT, "A[IX,J]*B[J,KY]->C[I,K]", "A[Iₓ, J] @ B[J, Kᵧ] → C[I, K]")
    ]
    assert len(set(found)) == 1


def test_the_timeline_is_drawn_when_asked_for(capsys, tmp_path):
    path = tmp_path / "matmul.svg"
    text_of(capsys, PRODUCT, SIZE, "X=4,Y=2", "--gantt", str(path))
    assert "ICI" in path.read_text(encoding="utf-8")


def test_a_product_that_fits_no_hbm_ends_with_3(capsys):
    arguments = [PRODUCT, "--size", SIZE, "--mesh", "X=4,Y=2", "--set", "hbm_capacity_bytes=1 MB"]
    assert main(arguments, "simcore matmul") == 3
    assert "does not fit: hbm needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("product", "flags", "message"),
    [
        ("A[I_X, J_X] · B[J, K] -> C[I, K]", {}, "mesh axis X splits both I and J"),
        ("A[I_X, J] · B[J, K_Q] -> C[I, K]", {}, "has no axis Q"),
        ("A[I_X, J] · B[L, K] -> C[I, K]", {}, "B[L, K] has no J to contract it with"),
        ("A[I_X, J] · B[J, K] -> C[I, Z]", {}, "the output of A[I_X, J] · B[J, K] has no dimension Z"),
        ("A[I_X, J] · B[J, K]", {}, "expected '->' and the output"),
        (PRODUCT, {"--size": "I=1023,J=8,K=8"}, "I = 1023 does not divide over X (4 ways)"),
        (PRODUCT, {"--size": "I=8,J=8"}, "no size for dimension K"),
        (PRODUCT, {"--size": "I=8,J=8,K=8,L=8"}, "a size is given for L"),
        (PRODUCT, {"--size": "I=8,J=8,K=-8"}, "cannot read 'K=-8': write DIMENSION=SIZE"),
        (PRODUCT, {"--size": "I=8,I=8"}, "I is given twice"),
        (PRODUCT, {"--size": None}, "--size is missing: write it like --size I=8192"),
        (PRODUCT, {"--mesh": None}, "--mesh is missing"),
        (PRODUCT, {"--mesh": "X=4,Y=0"}, "must be at least 1, got 0"),
        (PRODUCT, {"--mesh": "X=4,Y=2,Z=2"}, "3 axes of more than one chip, a slice of v5e has 2"),
        (PRODUCT, {"--mesh": "X=64,Y=8"}, "a slice of 64x8 has 512 chips, a pod of v5e has 256"),
        (PRODUCT, {"--slice": "4x4"}, "has 8 devices, v5e slice 4x4 has 16"),
        (PRODUCT, {"--slice": "8x1"}, "does not lie on whole axes"),
        (PRODUCT, {"--map": "X=z,Y=x"}, "without --slice it must put X on one of x, y"),
        (PRODUCT, {"--slice": "4x2", "--map": "X=x,Y=x"}, "physical axis x is used twice"),
        (PRODUCT, {"--dtype": "bf61"}, "no bf61 matmul rate: did you mean bf16?"),
        (PRODUCT, {"--dtype": "int4"}, "a collective needs a format of 8 bits or more here"),
        (PRODUCT, {"--plan": "0"}, "--plan 0: must be a whole number from 1 to 100"),
        (PRODUCT, {"--plan": "90"}, "choose one of 1 to"),
        (PRODUCT, {"--limit": "many"}, "--limit many: must be a whole number"),
        (PRODUCT, {"--set": "ici_link_bandwidth_bytes_per_s=0"}, "it must be positive"),
        (PRODUCT, {"--chip": "h100"}, "has 2 axes on the switch of H100"),
        (PRODUCT, {"--chip": "h100", "--mesh": "X=16,Y=1"}, "has 16 devices, an NVLink domain of H100 8"),
        (PRODUCT, {"--chip": "h100", "--mesh": "X=8,Y=1", "--slice": "8"}, "H100 has no slices"),
        (PRODUCT, {"--gantt": "picture.bmp"}, "the suffix chooses the format"),
        ("A[N, M, I, J] · B[N, M, J, K] -> C[N, M, I, K]", {"--size": "N=2,M=2,I=2,J=2,K=2"}, "write them as one"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(product, flags, message):
    given = {"--size": SIZE, "--mesh": "X=4,Y=2"} | flags
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    with pytest.raises(SimcoreError) as caught:
        main([product, *words], "simcore matmul")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["A[I_X,", "J]", "·", "B[J,", "K]"], ["A[I,J]·B[J,K]", "->", "C[I,K]"]])
def test_a_product_without_quotes_is_told_about_them(words):
    with pytest.raises(SimcoreError, match="put it in quotes"):
        main([*words, "--size", SIZE, "--mesh", "X=4,Y=2"], "simcore matmul")


def test_without_a_product_an_example_is_given():
    with pytest.raises(SimcoreError, match="give the product, such as"):
        main([], "simcore matmul")
