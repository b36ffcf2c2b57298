"""A fit as in cuML: k-means by Lloyd's algorithm, a step for each pass over the points."""

from loop import arguments, repeat


def main() -> None:
    options = arguments(__doc__).parse_args()
    import torch
    from torch_device import wait

    points, features, clusters = (2_000, 8, 8) if options.tiny else (500_000, 64, 128)
    torch.manual_seed(1)
    data = torch.randn(points, features, device=options.device)
    centres = data[torch.randperm(points, device=options.device)[:clusters]].clone()
    one_each = torch.ones(points, device=options.device)

    def step() -> None:
        # The squared length of a point is the same for each centre, and so decides nothing.
        nearest = torch.argmin((centres * centres).sum(1) - 2 * data @ centres.T, dim=1)
        counts = torch.zeros(clusters, device=options.device).index_add_(0, nearest, one_each)
        sums = torch.zeros_like(centres).index_add_(0, nearest, data)
        centres.copy_(torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres))
        wait(options.device)

    repeat("kmeans", "points", points, step, options.seconds)


if __name__ == "__main__":
    main()
