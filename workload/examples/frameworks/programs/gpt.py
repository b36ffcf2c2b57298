"""Text generation: a GPT decodes one token after the other with its cache, float16, batch 1. Random weights.

After 128 tokens of a prompt it decodes 384, then begins again with another prompt. With `--train` it is trained in
mixed precision instead, by two sequences of 512 tokens in each step.
"""

from loop import arguments, repeat

SIZES = {
    "medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},  # 355 million parameters: GPT-2 medium
    "1.3b": {"n_layer": 24, "n_head": 16, "n_embd": 2048},  # 1.3 billion parameters
}
TINY = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 100}
PROMPT, LONGEST, SEQUENCES = 128, 512, 2


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--train", action="store_true", help="forward, backward and optimiser; default: decoding")
    options = parser.parse_args()
    import torch
    from torch_device import half, wait
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=LONGEST, **(TINY if options.tiny else SIZES[options.size]))
    if options.train:
        train(torch, GPT2LMHeadModel(config), options)
        return
    torch.set_default_dtype(half(options.device))
    with torch.device(options.device):
        model = GPT2LMHeadModel(config).eval()
        prompt = torch.randint(0, config.vocab_size, (1, PROMPT))
    state = {"cache": None, "token": prompt, "length": LONGEST}

    def step() -> None:
        if state["length"] >= LONGEST:
            state.update(cache=None, token=prompt, length=PROMPT)
        with torch.inference_mode():
            out = model(input_ids=state["token"], past_key_values=state["cache"], use_cache=True)
            token = out.logits[:, -1:].argmax(dim=-1)
        wait(options.device)
        state.update(cache=out.past_key_values, token=token, length=state["length"] + 1)

    repeat(f"gpt {options.size}", "tokens", 1, step, options.seconds)


def train(torch, model, options):
    from torch_device import wait

    model = model.to(options.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=options.device == "cuda")
    tokens = torch.randint(0, model.config.vocab_size, (SEQUENCES, LONGEST), device=options.device)

    def step() -> None:
        with torch.autocast(options.device, dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        wait(options.device)

    repeat(f"gpt {options.size} train", "sequences", SEQUENCES, step, options.seconds)


if __name__ == "__main__":
    main()
