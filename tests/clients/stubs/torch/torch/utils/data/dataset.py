"""Part of the stand-in for torch."""


class IterableDataset:
    def __class_getitem__(cls, _):
        return cls
