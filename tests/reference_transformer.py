"""Every model family in plain numpy, unsharded and unblocked, to check what the simulated tasks compute."""

import math

import numpy as np

ROPE_BASE, EPSILON = 10_000.0, 1e-6


def rms(x, scale=1.0):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * scale


def layer_norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON) * scale + bias


def rotate(x, positions):
    """x [T, heads, H] at positions [T]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def activate(name, x):
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "relu":
        return np.where(x > 0, x, 0)
    if name == "gelu":
        return x * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)
    assert name in ("gelu_new", "gelu_pytorch_tanh")
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax_attention(q, k, v, mask, scale):
    """q [T, N, a], k [S, N, a], v [S, N, b], mask [T, S]: [T, N, b]."""
    scores = np.where(mask, np.einsum("tna,sna->nts", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("nts,snb->tnb", weights / weights.sum(-1, keepdims=True), v)


class Reference:
    """One request at a time. ``weights(name, layer)`` gives a weight's array, of its dimensions as written."""

    def __init__(self, config, weights, capacity=None):
        self.config, self.weights, self.capacity = config, weights, capacity
        self.routed = []  # for every layer with experts the rows of each expert

    def forward(self, tokens, cached, caches, every=False):
        """Logits of each request's last position, or of ``every`` one; ``caches`` [request][layer] of {name: [S, ..]},
        extended in place."""
        self.routed = []
        c = self.config
        xs = []
        for tokens_of, length in zip(tokens, cached, strict=True):
            x = self.weights("embedding")[tokens_of]
            if c.learned_positions:
                x = x + self.weights("position_table")[length + np.arange(len(tokens_of))]
            xs.append(x)
        for layer in range(c.n_layers):
            xs = self.layer(xs, layer, cached, caches)
        logits = []
        for x in xs:
            last = x if every else x[-1]
            last = self.norm("final_norm", last, None) if c.final_norm else last
            head = self.weights("embedding").T if c.tied_embeddings else self.weights("lm_head")
            logits.append(last @ head + (self.weights("b_lm_head") if c.lm_head_bias else 0))
        return np.array(logits)

    def norm(self, name, x, layer):
        scale = self.weights(f"{name}_scale", layer)
        if self.config.norm == "rmsnorm":
            return rms(x, scale)
        return layer_norm(x, scale, self.weights(f"{name}_bias", layer) if self.config.norm_bias else 0)

    def layer(self, xs, layer, cached, caches):
        c = self.config
        attend = self.attention if c.mla is None else self.latent

        def attention(hs):
            return [attend(h, layer, length, mine[layer]) for h, length, mine in zip(hs, cached, caches, strict=True)]

        def feed_forward(hs):
            if c.is_moe_layer(layer):
                return self.experts(hs, layer)
            return [self.mlp(h, layer, "") for h in hs]

        def normed(name, some):
            return [self.norm(name, x, layer) for x in some]

        if c.parallel_block:
            hs = normed("attention_norm", xs)
            ms = hs if c.norms_per_layer == 1 else normed("mlp_norm", xs)
            return [x + o + y for x, o, y in zip(xs, attention(hs), feed_forward(ms), strict=True)]
        for block, name in ((attention, "attention"), (feed_forward, "mlp")):
            ys = block(normed(f"{name}_norm", xs))
            if c.norms_per_layer == 4:
                ys = normed(f"{name}_post_norm", ys)
            xs = [x + y for x, y in zip(xs, ys, strict=True)]
        return xs

    def mask(self, layer, cached, new):
        mine, theirs = (cached + np.arange(new))[:, None], np.arange(cached + new)
        seen = theirs <= mine
        kind, c = self.config.attention_pattern[layer], self.config
        if kind == "sliding":
            seen = seen & (mine - theirs < c.sliding_window)
        elif kind == "chunked":
            seen = seen & (mine // c.attention_chunk == theirs // c.attention_chunk)
        return seen

    def attention(self, h, layer, cached, cache):
        c, w = self.config, lambda name: self.weights(name, layer)
        positions = cached + np.arange(len(h))
        q, k, v = (np.einsum("td,dnh->tnh", h, w(f"w_{x}")) + (w(f"b_{x}") if c.qkv_bias else 0) for x in "qkv")
        if c.qk_norm == "per_head":
            q, k = rms(q, w("q_norm_scale")), rms(k, w("k_norm_scale"))
        elif c.qk_norm == "weightless":
            q, k = rms(q), rms(k)
        elif c.qk_norm == "whole":
            q = rms(q.reshape(len(h), -1), w("q_norm_scale").reshape(-1)).reshape(q.shape)
            k = rms(k.reshape(len(h), -1), w("k_norm_scale").reshape(-1)).reshape(k.shape)
        if not c.learned_positions:
            q, k = rotate(q, positions), rotate(k, positions)
        cache["k_cache"] = np.concatenate([cache["k_cache"][:cached], k])
        cache["v_cache"] = np.concatenate([cache["v_cache"][:cached], v])
        group = c.n_heads // c.n_kv_heads
        keys, values = (np.repeat(cache[name], group, axis=1) for name in ("k_cache", "v_cache"))
        o = softmax_attention(q, keys, values, self.mask(layer, cached, len(h)), c.head_dim**-0.5)
        return np.einsum("tnh,nhd->td", o, w("w_o")) + (w("b_o") if c.attention_output_bias else 0)

    def latent(self, h, layer, cached, cache):
        """As the equations have it: keys and values of all heads from the latents, never absorbed."""
        c, m, w = self.config, self.config.mla, lambda name: self.weights(name, layer)
        positions, width = cached + np.arange(len(h)), self.config.mla.kv_lora_rank
        queries = h
        if m.q_lora_rank is not None:
            queries = rms(h @ w("w_q_down") + (w("b_q_down") if c.qkv_bias else 0), w("q_norm_scale"))
        q_rope = rotate(np.einsum("tq,qno->tno", queries, w("w_q_rope")), positions)
        q = np.concatenate([np.einsum("tq,qnh->tnh", queries, w("w_q_nope")), q_rope], axis=-1)
        down = h @ w("w_kv_down") + (w("b_kv_down") if c.qkv_bias else 0)
        rope = rotate(down[:, None, width:], positions)[:, 0]
        latent = np.concatenate([rms(down[:, :width], w("kv_norm_scale")), rope], axis=-1)
        cache["latent_cache"] = np.concatenate([cache["latent_cache"][:cached], latent])
        all_latents, all_ropes = cache["latent_cache"][:, :width], cache["latent_cache"][:, width:]
        k_nope = np.einsum("sc,nhc->snh", all_latents, w("w_k_up"))
        ropes = np.broadcast_to(all_ropes[:, None], (*k_nope.shape[:2], all_ropes.shape[1]))
        v = np.einsum("sc,ncv->snv", all_latents, w("w_v_up"))
        k = np.concatenate([k_nope, ropes], axis=-1)
        o = softmax_attention(q, k, v, self.mask(layer, cached, len(h)), m.qk_head_dim**-0.5)
        return np.einsum("tnv,nvd->td", o, w("w_o")) + (w("b_o") if c.attention_output_bias else 0)

    def mlp(self, h, layer, name, expert=None):
        c = self.config

        def w(what):
            array = self.weights(what, layer)
            return array if expert is None else array[expert]

        def bias(part):
            return w(f"b_{name}{part}") if c.mlp_bias else 0

        up = h @ w(f"w_{name}up") + bias("up")
        if c.gated_mlp:
            z = activate(c.activation, h @ w(f"w_{name}gate") + bias("gate")) * up
        else:
            z = activate(c.activation, up)
        return z @ w(f"w_{name}down") + bias("down")

    def experts(self, hs, layer):
        """Token by token; with a capacity an expert that is full leaves a token out."""
        m = self.config.moe
        used = np.zeros(m.n_experts, dtype=int)
        outs = []
        for h in hs:
            out = np.zeros_like(h)
            logits = h @ self.weights("w_router", layer)
            logits = logits + (self.weights("b_router", layer) if m.router_bias else 0)
            for t, row in enumerate(logits):
                best = sorted(range(m.n_experts), key=lambda e: -row[e])[: m.top_k]
                weights = np.exp(row[best] - row[best].max())
                for e, weight in zip(best, weights / weights.sum(), strict=True):
                    used[e] += 1
                    if self.capacity is None or used[e] <= self.capacity:
                        out[t] += weight * self.mlp(h[t], layer, "expert_", e)
            if m.shared_d_ff:
                shared = self.mlp(h, layer, "shared_")
                if m.shared_gate:
                    shared = shared / (1 + np.exp(-(h @ self.weights("w_shared_weight", layer))))
                out = out + shared
            outs.append(out)
        self.routed.append(tuple(used.tolist()))
        return outs
