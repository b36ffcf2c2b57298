"""A training step in JAX: eight dense layers, batch 256, gradient descent. Random weights and data."""

import os

from loop import arguments, repeat

BATCH, LAYERS = 256, 8


def main() -> None:
    options = arguments(__doc__).parse_args()
    # By default JAX takes 75 % of the whole GPU at its start, which is above the limit of a slot.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax import numpy

    width = 32 if options.tiny else 2048
    keys = jax.random.split(jax.random.key(1), LAYERS + 1)
    weights = [jax.random.normal(key, (width, width), numpy.float32) / width**0.5 for key in keys[:-1]]
    rows = jax.random.normal(keys[-1], (BATCH, width), numpy.float32)

    def loss(weights: list, rows: "jax.Array") -> "jax.Array":
        out = rows
        for weight in weights:
            out = jax.nn.gelu(out @ weight)
        return ((out - rows) ** 2).mean()

    @jax.jit
    def update(weights: list, rows: "jax.Array") -> list:
        gradients = jax.grad(loss)(weights, rows)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)]

    def step() -> None:
        nonlocal weights
        weights = update(weights, rows)
        jax.block_until_ready(weights)

    repeat("jax train", "rows", BATCH, step, options.seconds)


if __name__ == "__main__":
    main()
