"""The demonstration: eight pods share a GPU, one is deleted in mid-kernel, the others go on."""
