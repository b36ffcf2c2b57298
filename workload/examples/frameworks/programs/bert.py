"""Text embedding: BERT-base, float16, texts of 128 tokens, by default 16 in each step. Random weights."""

from loop import arguments, repeat

TOKENS = 128
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=16, help="texts in each step (default: %(default)s)")
    parser.add_argument("--graph", action="store_true", help="each step is one CUDA graph; a CPU runs it without")
    options = parser.parse_args()
    import torch
    from torch_device import captured, half, wait
    from transformers import BertConfig, BertModel

    config = BertConfig(**(TINY if options.tiny else {}))  # the default is BERT-base
    with torch.device(options.device):
        model = BertModel(config, add_pooling_layer=False).to(half(options.device)).eval()
        tokens = torch.randint(0, config.vocab_size, (options.batch, TOKENS))

    @torch.no_grad()
    def embed() -> None:
        torch.nn.functional.normalize(model(input_ids=tokens).last_hidden_state.mean(dim=1), dim=-1)

    run = captured(embed) if options.graph and options.device == "cuda" else embed

    def step() -> None:
        run()
        wait(options.device)

    repeat("bert", "texts", options.batch, step, options.seconds)


if __name__ == "__main__":
    main()
