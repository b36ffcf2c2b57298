"""Text generation as serving engines do it: one token is one CUDA graph over a cache of fixed size, float16, batch 1.

A GPT with random weights decodes the tokens 128 to 511 of a text, then begins again. Unlike `gpt.py`, whose Python is
busy for longer than its kernels, this program is limited by the GPU's memory: each token reads every weight. On a CPU
the same step runs without a graph.
"""

from loop import arguments, repeat

SIZES = {"medium": (24, 16, 1024), "1.3b": (24, 16, 2048)}
"""Layers, heads, and the width: 355 million and 1.3 billion parameters."""
TINY = (1, 2, 32)
VOCABULARY, TINY_VOCABULARY = 50257, 100
PROMPT, LONGEST = 128, 512


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", choices=SIZES, default="medium")
    options = parser.parse_args()
    import torch
    from torch.nn import functional
    from torch_device import captured, half, wait

    device, kind = options.device, half(options.device)
    layers, heads, width = TINY if options.tiny else SIZES[options.size]
    vocabulary = TINY_VOCABULARY if options.tiny else VOCABULARY

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=kind) * 0.02

    words, places = weight(vocabulary, width), weight(LONGEST, width)
    blocks = [
        (weight(3 * width, width), weight(width, width), weight(4 * width, width), weight(width, 4 * width))
        for _ in range(layers)
    ]
    keys, values = (torch.zeros(layers, heads, LONGEST, width // heads, device=device, dtype=kind) for _ in range(2))
    token = torch.zeros(1, dtype=torch.long, device=device)
    place = torch.full((1,), PROMPT, dtype=torch.long, device=device)
    every_place = torch.arange(LONGEST, device=device)

    @torch.inference_mode()
    def decode() -> None:
        """One token: reads and writes tensors that stay where they are."""
        hidden = words[token] + places[place]
        seen = (every_place <= place)[None, None, None, :]
        for number, (projection, out, wide, narrow) in enumerate(blocks):
            query, key, value = functional.linear(functional.layer_norm(hidden, (width,)), projection).chunk(3, dim=-1)
            keys[number].index_copy_(1, place, key.view(1, heads, -1).transpose(0, 1))
            values[number].index_copy_(1, place, value.view(1, heads, -1).transpose(0, 1))
            attended = functional.scaled_dot_product_attention(
                query.view(1, heads, 1, -1), keys[number][None], values[number][None], attn_mask=seen
            )
            hidden = hidden + functional.linear(attended.reshape(1, width), out)
            inner = functional.gelu(functional.linear(functional.layer_norm(hidden, (width,)), wide))
            hidden = hidden + functional.linear(inner, narrow)
        logits = functional.linear(functional.layer_norm(hidden, (width,)), words)
        token.copy_(logits.argmax(dim=-1))
        place.copy_((place + 1 - PROMPT) % (LONGEST - PROMPT) + PROMPT)

    run = captured(decode) if device == "cuda" else decode

    def step() -> None:
        run()
        wait(device)

    repeat(f"decode {options.size}", "tokens", 1, step, options.seconds)


if __name__ == "__main__":
    main()
