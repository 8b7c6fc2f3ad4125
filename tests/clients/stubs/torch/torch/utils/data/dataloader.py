"""Part of the stand-in for torch."""

from typing import Generic, TypeVar

T = TypeVar("T")


class DataLoader(Generic[T]):
    """Iterates over a data set, one item per batch."""

    def __init__(self, dataset, collate_fn, **options):
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __iter__(self):
        return (self.collate_fn([item]) for item in self.dataset)
