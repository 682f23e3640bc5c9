"""A Llama-like model in plain numpy, unsharded and unblocked, to check what the simulated tasks compute."""

import numpy as np


def random_model(rng, layers=2, d=16, n=4, k=2, h=4, f=24, v=32, tied=True):
    def matrix(*shape):
        return rng.normal(size=shape) / np.sqrt(shape[-2])

    weights = {
        "embedding": rng.normal(size=(v, d)),
        "w_q": matrix(layers, d, n * h),
        "w_k": matrix(layers, d, k * h),
        "w_v": matrix(layers, d, k * h),
        "w_o": matrix(layers, n * h, d),
        "w_gate": matrix(layers, d, f),
        "w_up": matrix(layers, d, f),
        "w_down": matrix(layers, f, d),
        "attention_norm_scale": rng.normal(size=(layers, d)),
        "mlp_norm_scale": rng.normal(size=(layers, d)),
        "final_norm_scale": rng.normal(size=d),
    }
    if not tied:
        weights["lm_head"] = matrix(d, v)
    return weights


def norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def rotate(x, positions):
    """x [T, heads, H] at positions [T]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def forward(weights, tokens, k_cache, v_cache, n, k, h):
    """Logits of the last position [B, V]; caches [L, B, S, k h] are filled from their first S - T positions on."""
    batch, new = tokens.shape
    cached = k_cache.shape[2] - new
    logits = []
    for b in range(batch):
        positions = cached + np.arange(new)
        x = weights["embedding"][tokens[b]]
        for layer in range(len(weights["w_q"])):
            y = norm(x, weights["attention_norm_scale"][layer])
            q = rotate((y @ weights["w_q"][layer]).reshape(new, n, h), positions)
            keys = rotate((y @ weights["w_k"][layer]).reshape(new, k, h), positions)
            k_cache[layer, b, cached:] = keys.reshape(new, -1)
            v_cache[layer, b, cached:] = y @ weights["w_v"][layer]
            all_keys = np.repeat(k_cache[layer, b].reshape(-1, k, h), n // k, axis=1)
            all_values = np.repeat(v_cache[layer, b].reshape(-1, k, h), n // k, axis=1)
            scores = np.einsum("tnh,snh->nts", q, all_keys) / np.sqrt(h)
            scores[:, np.arange(cached + new)[None, :] > positions[:, None]] = -np.inf
            weighted = np.exp(scores - scores.max(-1, keepdims=True))
            weighted /= weighted.sum(-1, keepdims=True)
            x = x + np.einsum("nts,snh->tnh", weighted, all_values).reshape(new, -1) @ weights["w_o"][layer]
            y = norm(x, weights["mlp_norm_scale"][layer])
            gate = y @ weights["w_gate"][layer]
            x = x + (gate / (1 + np.exp(-gate)) * (y @ weights["w_up"][layer])) @ weights["w_down"][layer]
        head = weights["lm_head"] if "lm_head" in weights else weights["embedding"].T
        logits.append(norm(x[-1], weights["final_norm_scale"]) @ head)
    return np.array(logits)
