"""What a training step needs and holds, by closed forms and from layouts: the figures a simulation is held against.

A matrix of n parameters costs 6 n FLOPs a token: 2 n forward, and 4 n backward for the gradients of its input and of
itself. Attention's scores and values cost 12 times tokens, positions seen and heads' width, in all three. Source: How
To Scale Your Model, "All the Transformer Math You Need to Know"; MFU's conventions: Chowdhery et al. 2022, appendix B.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simcore.opgraph import OpGraph
from simcore.opgraph.backward_operations import Keep
from simcore.opgraph.graph import Repeat
from simcore.opgraph.liveness import arrays, lasting_bytes, local_bytes
from workloads.accounting import account
from workloads.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Needed:
    """FLOPs that a step needs over all chips: of matmuls and vocabulary, and of attention's triangle or its square."""

    parameters: int
    matmul_flops: int
    attention_flops: int
    full_attention_flops: int

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.attention_flops

    @property
    def flops_full_attention(self) -> int:
        """With the square of attention's scores, as many others count."""
        return self.matmul_flops + self.full_attention_flops


def needed_of(config: ModelConfig, *, batch: int, context: int) -> Needed:
    """What a step on ``batch`` sequences of ``context`` tokens needs."""
    forward = account(config, batch=batch, cached=0, new=context)
    every_position = forward.vocabulary_flops * context  # an inference step has the last position's logits alone
    return Needed(
        parameters=forward.parameters,
        matmul_flops=3 * (forward.layer_flops + every_position),
        attention_flops=3 * forward.attention_needed_flops,
        full_attention_flops=3 * forward.attention_flops,
    )


def held_bytes(ops: OpGraph) -> dict[str, int]:
    """Bytes of each chip: weights, the optimizer's states, and what is kept of one microbatch's forward pass.

    What is kept of layers is one array for each of them.
    """
    lasting = lasting_bytes(ops)
    counts = {node.name: node.count for node in ops.body if isinstance(node, Repeat)}
    inputs = {node.out.name for repeat in ops.body if isinstance(repeat, Repeat) for node in repeat.body
              if isinstance(node, Keep)}  # fmt: skip
    held = {
        "weights": sum(lasting["weight"].values()),
        "optimizer states": sum(lasting["state"].values()),
        "layers' inputs": 0,
        "other activations of layers": 0,
    }
    for name, repeats in arrays(ops).items():
        tensor = ops.tensors[name]
        if tensor.role == "activation" and not re.search(r" m[1-9]\d*$", repeats[0]):
            what = "layers' inputs" if name in inputs else "other activations of layers"
            held[what] += counts[repeats[0]] * local_bytes(ops, tensor)
    return held
