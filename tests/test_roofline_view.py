"""The roofline of a run: intensities that are known, roofs of the chip, pictures."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simcore.chips import load_chip
from simcore.cli import main
from simcore.errors import OutputError
from simcore.layout import Mesh
from simcore.lowering import LoweringOptions, lower
from simcore.opgraph import OpGraph
from simcore.running import run
from simcore.scenario import run_scenario
from simcore.views.roofline_run import bandwidth_of, draw_roofline_of, roofline_points


def matmul(m, k=1024, n=1024, ideal=True):
    ops = OpGraph("matmul", Mesh.of(X=1), {"M": m, "K": k, "N": n})
    ops.einsum("product", ops.input("a[M, K]"), ops.weight("b[K, N]"))
    chip = load_chip("v5e")
    return run(lower(ops, chip, LoweringOptions(keep_activations=False)), chip=chip, ideal=ideal)


@pytest.mark.parametrize("m", [8, 128, 4096])
def test_a_matmul_is_where_its_bytes_and_flops_put_it(m):
    result = matmul(m)
    over_hbm = next(point for point in roofline_points(result) if point.interface == "hbm")
    assert over_hbm.flops == 2 * m * 1024 * 1024
    assert over_hbm.moved_bytes == result.bytes["hbm_read"] + result.bytes["hbm_write"]
    chip = result.chip
    bound = over_hbm.intensity_flops_per_byte * chip.hbm_bandwidth_bytes_per_s
    assert over_hbm.roof_flops_per_s == pytest.approx(min(chip.peak("bf16"), bound), rel=1e-6)
    assert 0.5 < over_hbm.share_of_roof <= 1 + 1e-9


def test_vmem_is_a_level_of_its_own():
    points = {point.interface: point for point in roofline_points(matmul(4096))}
    tiles = points["vmem"]
    assert tiles.flops == points["hbm"].flops
    assert tiles.moved_bytes >= 2 * (4096 * 1024 + 1024 * 1024) + 4 * 4096 * 1024
    assert bandwidth_of(matmul(8), "vmem") == load_chip("v5e").vmem_bandwidth_bytes_per_s


def test_no_operation_is_above_its_roof_over_hbm():
    result = run_scenario("prefill", ideal=True, parameters={"model": "tiny", "context": 512})
    assert all(point.share_of_roof <= 1 + 1e-6 for point in roofline_points(result) if point.interface == "hbm")


def test_every_name_is_inside_the_picture(tmp_path, monkeypatch):
    """Operations at one place have their names below each other: there is room for them."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: figures.append(figure))
    draw_roofline_of(run_scenario("decode_step", parameters={"context": 512}), tmp_path / "roofline.png")
    canvas = FigureCanvasAgg(figures[0])
    canvas.draw()
    axes = figures[0].axes[0]
    frame = axes.get_window_extent()
    names = [text for text in axes.texts if "%" in text.get_text()]
    assert len(names) > 3
    assert all(text.get_window_extent().y0 >= frame.y0 for text in names)


def test_the_picture_and_what_has_none(tmp_path, capsys):
    draw_roofline_of(matmul(256, ideal=False), tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").stat().st_size > 20_000
    ring = run_scenario("ring_allgather", parameters={"ring": 4})
    with pytest.raises(OutputError, match="no operation of the run multiplies"):
        draw_roofline_of(ring, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    words = ["run", "decode_step", "--model", "tiny", "--context", "64", "--roofline", str(tmp_path / "run.svg")]
    assert main([*words, "--quiet"]) == 0
    assert "of its roof" in (tmp_path / "run.svg").read_text(encoding="utf-8")
