"""The help texts that come with Python: English, always there, the last resort.

They differ from one version of Python to the next, so that numbers measured on them compare with
nothing but numbers of the same fingerprint.
"""

from __future__ import annotations

import platform

from elbowroom.lab.corpora.texts import Document, Texts


def topics() -> Texts:
    """Return the help topics of this Python, a document a topic, as one language, ``en``.

    Example:
        >>> topics().languages
        ('en',)
    """
    from pydoc_data.topics import topics as content

    documents = tuple(Document.from_text(name, text) for name, text in sorted(content.items()))
    texts = Texts(name="pydoc", documents={"en": documents})
    version = platform.python_version()
    return Texts(
        name="pydoc",
        documents=texts.documents,
        notes=(f"Python {version}: fingerprint {texts.fingerprint}",),
    )
