"""Object detection: YOLOS-small, float16, images of 512 × 864, by default one at a time. Random weights."""

from loop import arguments, repeat


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=1, help="images in each step (default: %(default)s)")
    options = parser.parse_args()
    import torch
    from torch_device import half, wait
    from transformers import YolosConfig, YolosForObjectDetection

    size = (64, 64) if options.tiny else (512, 864)
    shape = (
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        if options.tiny
        else {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    )
    config = YolosConfig(image_size=list(size), patch_size=16, num_detection_tokens=100, num_labels=91, **shape)
    with torch.device(options.device):
        model = YolosForObjectDetection(config).to(half(options.device)).eval()
        images = torch.rand(options.batch, 3, *size, dtype=half(options.device))

    def step() -> None:
        with torch.inference_mode():
            model(pixel_values=images)
        wait(options.device)

    repeat("yolos", "images", options.batch, step, options.seconds)


if __name__ == "__main__":
    main()
