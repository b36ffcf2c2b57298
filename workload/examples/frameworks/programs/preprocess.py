"""Preparation of images: a CPU flips and crops frames of 1080 × 1920, the GPU resizes and normalises them.

The work that many programs do before a model: little for the GPU, much for the CPU and for the copies between them.
"""

from loop import arguments, repeat

BATCH = 4


def main() -> None:
    options = arguments(__doc__).parse_args()
    import numpy
    import torch
    from torch_device import half, wait

    height, width, side = (72, 96, 32) if options.tiny else (1080, 1920, 224)
    random = numpy.random.default_rng(1)
    frames = random.integers(0, 256, (2 * BATCH, height, width, 3), dtype=numpy.uint8)
    staging = torch.empty((BATCH, height * 3 // 4, width * 3 // 4, 3), dtype=torch.uint8)
    staging = staging.pin_memory() if options.device == "cuda" else staging
    buffer = staging.numpy()
    mean = torch.tensor([0.485, 0.456, 0.406], device=options.device).view(1, 3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=options.device).view(1, 3, 1, 1)

    def step() -> None:
        for place, frame in enumerate(random.integers(0, len(frames), BATCH)):
            top, left = random.integers(0, height // 4), random.integers(0, width // 4)
            cut = frames[frame, top : top + buffer.shape[1], left : left + buffer.shape[2]]
            buffer[place] = cut[:, ::-1] if random.random() < 0.5 else cut
        images = staging.to(options.device, non_blocking=True).permute(0, 3, 1, 2).float().div(255)
        images = torch.nn.functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
        ((images - mean) / spread).to(half(options.device))
        wait(options.device)

    repeat("preprocess", "images", BATCH, step, options.seconds)


if __name__ == "__main__":
    main()
