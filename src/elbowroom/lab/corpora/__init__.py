"""Sources of text by language: folders, tiny-shakespeare, real languages; see `load`."""

from elbowroom.lab.corpora.folder import folder
from elbowroom.lab.corpora.shakespeare import shakespeare
from elbowroom.lab.corpora.texts import Document, Pair, Texts

__all__ = ["Document", "Pair", "Texts", "folder", "shakespeare"]
