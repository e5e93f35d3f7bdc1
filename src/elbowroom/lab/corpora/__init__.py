"""Sources of text by language: `load` takes a line such as ``"shakespeare"`` or a folder's path."""

from elbowroom.lab.corpora.debian import manpages
from elbowroom.lab.corpora.folder import folder
from elbowroom.lab.corpora.hub import hub
from elbowroom.lab.corpora.shakespeare import shakespeare
from elbowroom.lab.corpora.spec import CorpusSpec, load
from elbowroom.lab.corpora.texts import Document, Pair, Texts
from elbowroom.lab.corpora.topics import topics
from elbowroom.lab.corpora.udhr import udhr

__all__ = [
    "CorpusSpec",
    "Document",
    "Pair",
    "Texts",
    "folder",
    "hub",
    "load",
    "manpages",
    "shakespeare",
    "topics",
    "udhr",
]
