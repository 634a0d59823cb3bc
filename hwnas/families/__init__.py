"""Families of networks; ``get`` finds one by the name that a search space gives."""

from hwnas.errors import SpaceError, unknown
from hwnas.families.base import Family
from hwnas.families.mbconv.family import MBConv
from hwnas.families.resnet.family import ResNet
from hwnas.families.vit.family import ViT


def get(name: str) -> Family:
    """Return a family by name.

    Raises:
        SpaceError: there is none of that name.
    """
    families: dict[str, Family] = {"mbconv": MBConv(), "resnet": ResNet(), "vit": ViT()}
    if name not in families:
        raise SpaceError(unknown("family", name, families))
    return families[name]
