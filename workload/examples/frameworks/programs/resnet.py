"""ResNet-50: inference in float16, or training in mixed precision. Random weights and images."""

from loop import arguments, repeat


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--train", action="store_true", help="forward, backward and optimiser; default: inference")
    parser.add_argument("--batch", type=int, default=8, help="images in each step (default: %(default)s)")
    options = parser.parse_args()
    import torch
    from torch_device import half, wait
    from torchvision.models import resnet18, resnet50

    device, side = options.device, 32 if options.tiny else 224
    torch.backends.cudnn.benchmark = True
    with torch.device(device):
        model = (resnet18 if options.tiny else resnet50)(weights=None).to(memory_format=torch.channels_last)
        images = torch.rand(options.batch, 3, side, side).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (options.batch,))
    if options.train:
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step() -> None:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            wait(device)

    else:
        model.eval().to(half(device))
        images = images.to(half(device))

        def step() -> None:
            with torch.inference_mode():
                model(images)
            wait(device)

    repeat(f"resnet {'train' if options.train else 'infer'}", "images", options.batch, step, options.seconds)


if __name__ == "__main__":
    main()
