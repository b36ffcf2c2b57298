"""What PyTorch programs do with their device: wait for it, and choose a type that it computes quickly."""

import torch


def wait(device: str) -> None:
    """Returns when the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def half(device: str) -> torch.dtype:
    """float16 on a GPU; a CPU computes float32 faster."""
    return torch.float16 if device == "cuda" else torch.float32
