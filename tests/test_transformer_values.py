"""What was timed is what was computed: the tasks of a sharded Transformer, executed on numpy, give the plain result."""

import pytest

from simcore.chips import load_chip
from simcore.errors import GraphError
from simcore.opgraph import Groups
from tests.values import check_step
from workloads.config import ModelConfig

IN_VMEM = load_chip("v5e")
THROUGH_HBM = load_chip("v5e").replace(vmem_capacity_bytes=4000, mxu_side=2, mxu_sublanes=1)
PLACES = {
    "one chip, everything in VMEM": (IN_VMEM, 1),
    "two chips, everything in VMEM": (IN_VMEM, 2),
    "two chips, activations through HBM": (THROUGH_HBM, 2),
}


def tiny(**changes):
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "d_ff": 24}
    return ModelConfig(name="tiny", model_type="llama", vocabulary_size=32, **{**sizes, **changes})


@pytest.fixture(params=PLACES)
def place(request):
    return PLACES[request.param]


@pytest.mark.parametrize("tied", [True, False])
def test_a_decode_step_of_a_llama(place, tied):
    chip, ring = place
    check_step(tiny(tied_embeddings=tied), chip, "decode", context=9, ring=ring)


@pytest.mark.parametrize("causal", ["full", "skip"])
def test_a_prefill_of_a_llama(place, causal):
    chip, ring = place
    check_step(tiny(), chip, "prefill", context=6, ring=ring, causal=causal)


def test_requests_of_unequal_length(place):
    chip, ring = place
    check_step(tiny(), chip, "decode", context=[9, 2, 0], batch=3, ring=ring)


def test_a_chunk_of_a_prefill_sees_what_is_cached(place):
    chip, ring = place
    check_step(tiny(), chip, "prefill", context=4, cached=[5, 0], ring=ring)


def test_chips_share_a_key_value_head_where_there_are_fewer_heads_than_chips():
    check_step(tiny(n_kv_heads=1), IN_VMEM, "decode", context=[9, 3], ring=2)
    check_step(tiny(n_kv_heads=2), IN_VMEM, "decode", context=[9, 3], ring=4)


def test_narrow_weights_and_caches_change_no_value_that_is_moved():
    check_step(tiny(), IN_VMEM, "decode", context=[9, 3], ring=2, weights_dtype="int8", kv_dtype="fp8")


def test_groups_that_disagree_with_the_routing_are_an_error():
    groups = Groups(((2, 1),), ((0, 2),))
    assert groups.sources([[1, 0, 0], [0.5, 0, 0.5]]).tolist() == [0, 1, 1]
    with pytest.raises(GraphError, match="sends 1 rows to expert 0, the graph has 2"):
        groups.sources([[1, 0, 0], [0, 0, 1]])
    with pytest.raises(GraphError, match=r"experts \[1\], which the graph does not have"):
        groups.sources([[1, 1, 0], [1, 0, 1]])
