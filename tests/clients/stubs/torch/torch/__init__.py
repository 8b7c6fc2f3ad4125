"""Stands in for the package `torch`, which guidellm uses only to iterate over prompts. The package from PyPI
needs gigabytes of CUDA libraries."""


class Tensor(int):
    """A number."""

    def share_memory_(self):
        return self


def tensor(value):
    return Tensor(value)


class Generator:
    def manual_seed(self, seed):
        return self
