"""Text embedding: BERT-base, float16, 16 texts of 128 tokens in each step. Random weights."""

from loop import arguments, repeat

BATCH, TOKENS = 16, 128
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def main() -> None:
    options = arguments(__doc__).parse_args()
    import torch
    from torch_device import half, wait
    from transformers import BertConfig, BertModel

    config = BertConfig(**(TINY if options.tiny else {}))  # the default is BERT-base
    with torch.device(options.device):
        model = BertModel(config, add_pooling_layer=False).to(half(options.device)).eval()
        tokens = torch.randint(0, config.vocab_size, (BATCH, TOKENS))

    def step() -> None:
        with torch.inference_mode():
            torch.nn.functional.normalize(model(input_ids=tokens).last_hidden_state.mean(dim=1), dim=-1)
        wait(options.device)

    repeat("bert", "texts", BATCH, step, options.seconds)


if __name__ == "__main__":
    main()
